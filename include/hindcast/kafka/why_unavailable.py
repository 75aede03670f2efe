"""Why brokers did not answer. kafka-python raises that it gave up, and logs what went wrong at each try."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import KafkaError, KafkaTimeoutError

from hindcast.errors import BrokerRefusesError, BrokerUnavailableError

#: What is in the reasons of a client that a broker does not take: certificates, accounts, what they may do.
_REFUSALS = ("SSL", "certificate", "Sasl", "Authentication", "Authorization", "ACCESS_DENIED")
#: A client without TLS at a port that has it, or the other way round.
_OTHER_PROTOCOLS = ("Invalid frame length", "WRONG_VERSION_NUMBER")
#: A broker that took the connection and closed it. What it answered before, kafka-python may not have read: a
#: port with TLS, and one with accounts, often ends so.
_CLOSED = ("socket disconnected", "Connection reset", "ECONNRESET", "Broken pipe", "EPIPE")
#: A try that our own limit of time cut short says nothing of the brokers.
_CUT_SHORT = "Request timed out"
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

    def since(self, began: float) -> list[str]:
        """The errors from a time of the monotonic clock on, the newest first."""
        self.acquire()  # the threads of other clients add to them meanwhile
        try:
            errors = list(self._errors)
        finally:
            self.release()
        return [text for at, text in reversed(errors) if at >= began]


_heard = _Heard()
_connecting = logging.getLogger("kafka.net.manager")  # noqa: TID251 - kafka-python's own
_connecting.addHandler(_heard)
_connecting.setLevel(logging.WARNING)
_connecting.propagate = False  # each try has several lines, and what is raised says it once


@contextmanager
def explained(servers: str, topic: str) -> Iterator[None]:
    """Around what a client of kafka-python does, its connecting included.

    :param servers: the brokers' addresses
    :param topic: what it asks about
    :raises BrokerUnavailableError: if no broker answered
    :raises BrokerRefusesError: if one did, but does not take this client
    """
    began = time.monotonic()
    try:
        yield
    except (KafkaError, OSError) as error:
        reasons = [_text(error)]
        if isinstance(error, KafkaTimeoutError):
            reasons = _heard.since(began) or reasons
        raise _unavailable(servers, topic, reasons) from error


def _unavailable(servers: str, topic: str, reasons: list[str]) -> BrokerUnavailableError:
    refused = _refusal(reasons)
    if refused:
        return BrokerRefusesError(servers=servers, topic=topic, reason=refused)
    return BrokerUnavailableError(servers=servers, topic=topic, reason=reasons[0])


def _refusal(reasons: list[str]) -> str:
    """Why the brokers refuse this client, or nothing if they do not. Of tries that ended without a word only
    the newest counts: a broker that is being stopped ends a connection too, and takes none after that. The
    last of all may have had too little time.
    """
    for reason in reasons:
        if any(word in reason for word in (*_REFUSALS, *_OTHER_PROTOCOLS)):
            return reason
    newest = next((reason for reason in reasons if _CUT_SHORT not in reason), reasons[0])
    if any(word in newest for word in _CLOSED):
        return f"{newest}: they took its connection and closed it, as brokers do that want TLS or an account"
    return ""


def _text(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {str(error).removeprefix(f'{name}: ')}"
