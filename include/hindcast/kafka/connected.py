"""Clients of kafka-python that leave nothing behind if they cannot connect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from kafka.net.compat import KafkaNetClient

_Client = TypeVar("_Client")


def connected(kind: Callable[..., _Client], **options: Any) -> _Client:
    """A new ``KafkaConsumer`` or ``KafkaAdminClient``.

    kafka-python 3 starts a client's thread before it connects, and forgets both if no broker answers. A
    process that tries again for hours would keep a thread and three file handles of each try. Here they are
    ended.

    :param options: those of the class
    :raises KafkaError: as the class does
    """
    with ExitStack() as undone:

        def start(**given: Any) -> KafkaNetClient:
            started = KafkaNetClient(**given)
            undone.callback(started.close)
            return started

        client = kind(kafka_client=start, **options)
        undone.pop_all()  # it closes what it has started by itself
        return client
