"""Why brokers did not answer. kafka-python raises that it gave up, and logs what went wrong at each try."""

from __future__ import annotations

import logging
import time
from collections import deque

from kafka.errors import KafkaTimeoutError

from hindcast.errors import BrokerRefusesError, BrokerUnavailableError
from hindcast.kafka.security import uses_sasl
from hindcast.settings import Settings

#: What was logged longer ago is of another try. No client tries for longer.
_FRESH_SECONDS = 15.0
#: What is in the reasons of a client that a broker does not take: certificates, accounts, what they may do.
_REFUSALS = ("SSL", "certificate", "Sasl", "Authentication", "Authorization", "ACCESS_DENIED")
#: A client without TLS at a port that has it, or the other way round.
_OTHER_PROTOCOLS = ("Invalid frame length", "WRONG_VERSION_NUMBER")
#: A broker that refuses an account closes the connection, and kafka-python may see no more than that.
_CLOSED = "socket disconnected"
#: Of the newest errors so many are kept: a client logs some ten while it tries.
_KEPT = 20


class _Heard(logging.Handler):
    """Keeps the newest errors that were logged while clients connected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._errors: deque[tuple[float, str]] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args
        if not isinstance(arguments, tuple):
            return
        for argument in arguments:
            if isinstance(argument, Exception) and not isinstance(argument, KafkaTimeoutError):
                self._errors.append((time.monotonic(), _text(argument)))

    def fresh(self) -> list[str]:
        """The errors of this try, the newest first."""
        since = time.monotonic() - _FRESH_SECONDS
        return [text for at, text in reversed(self._errors) if at >= since]


_heard = _Heard()
_connecting = logging.getLogger("kafka.net.manager")  # noqa: TID251 - kafka-python's own
_connecting.addHandler(_heard)
_connecting.setLevel(logging.WARNING)
_connecting.propagate = False  # each try has several lines, and what is raised says it once


def unavailable(settings: Settings, topic: str, error: Exception) -> BrokerUnavailableError:
    """The error to raise after kafka-python's."""
    reasons = [_text(error)]
    if isinstance(error, KafkaTimeoutError):
        reasons = _heard.fresh() or reasons
    for reason in reasons:
        if _refuses(settings, reason):
            return BrokerRefusesError(servers=settings.bootstrap_servers, topic=topic, reason=reason)
    return BrokerUnavailableError(servers=settings.bootstrap_servers, topic=topic, reason=reasons[0])


def _refuses(settings: Settings, reason: str) -> bool:
    if any(word in reason for word in (*_REFUSALS, *_OTHER_PROTOCOLS)):
        return True
    return uses_sasl(settings) and _CLOSED in reason


def _text(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {str(error).removeprefix(f'{name}: ')}"
