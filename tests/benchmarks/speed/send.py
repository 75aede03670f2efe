"""Send an encoded load at its rate, with librdkafka, which costs little: ``python send.py`` in the environment
that ``make bench`` makes.

It imports nothing of Hindcast. Several topics get the same load, each of them whole, by one client: it puts the
records of all of them into one request, and the broker has a fraction of the requests of many clients.

The result is one JSON object: how far it fell behind its schedule, and by topic, of one record in fifty,
(partition, offset, the broker's timestamp in epoch milliseconds).
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from pathlib import Path

from confluent_kafka import Message, Producer

_HEAD = struct.Struct("<BBH")
_SAMPLED = 50
_TICK_SECONDS = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--steady", type=int, required=True, help="so many at the rate, the rest at once")
    parser.add_argument(
        "--start", type=float, required=True, help="when the first one is sent, epoch seconds"
    )
    asked = parser.parse_args()
    content = asked.file.read_bytes()
    producer = Producer(
        {
            "bootstrap.servers": asked.servers,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    samples: dict[str, list[tuple[int, int, int]]] = {topic: [] for topic in asked.topic}

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            raise SystemExit(f"A record was not delivered: {error}")
        samples[message.topic()].append((message.partition(), message.offset(), message.timestamp()[1]))

    def send(topic: str, value: bytes, key: bytes, partition: int, number: int) -> None:
        callback = delivered if number % _SAMPLED == 0 else None
        while True:
            try:
                producer.produce(topic, value, key, partition, callback)
            except BufferError:  # so many wait to be sent
                producer.poll(0.1)
            else:
                return

    at = 0
    sent = 0
    behind = 0.0
    while at < len(content):
        due = int((time.time() - asked.start) * asked.rate)
        if due < asked.steady:
            behind = max(behind, (due - sent) / asked.rate)
        while (sent < due or sent >= asked.steady) and at < len(content):
            partition, key_bytes, value_bytes = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            key = content[at : at + key_bytes]
            at += key_bytes
            value = content[at : at + value_bytes]
            at += value_bytes
            for topic in asked.topic:
                send(topic, value, key, partition, sent)
            sent += 1
        producer.poll(0)
        time.sleep(_TICK_SECONDS)  # records are due by the clock
    left = producer.flush(60)
    if left:
        raise SystemExit(f"{left} records were not delivered.")
    print(json.dumps({"sent": sent, "behind_seconds": round(behind, 3), "samples": samples}))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
