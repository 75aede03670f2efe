"""Partitions, their offsets, and the shards that partitions are dealt to.

A pipeline numbers the partitions of all its topics through: partition p of its topic number i is
``i * TOPIC_STRIDE + p`` (:data:`hindcast.pipeline.TOPIC_STRIDE`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

#: Partition -> offset. An end is exclusive: it is the offset of the next record to read.
Offsets = dict[int, int]
#: What :func:`app_id` makes.
_APP = re.compile(r"([^/]+)/v(\d+)/([^/]+)")
_SHARD_NAME = re.compile(r"v(\d+)\.g(\d+)\.s(\d+)")


def by_partition(recorded: Mapping[str, int]) -> Offsets:
    """Offsets out of a JSON object, whose keys are texts."""
    return {int(partition): int(offset) for partition, offset in recorded.items()}


def as_json_object(offsets: Mapping[int, int]) -> dict[str, int]:
    """Offsets for a JSON object, in the order of the partitions."""
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def offsets_to_json(offsets: Mapping[int, int]) -> str:
    return json.dumps(as_json_object(offsets))


def offsets_from_json(text: str) -> Offsets:
    return by_partition(json.loads(text))


class ShardId(NamedTuple):
    """Which shard of a pipeline: shard ``v1.g0.s2`` is number 2 of the first generation of version 1."""

    version: int
    generation: int
    number: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """:raises ValueError: if it is no shard's name"""
        found = _SHARD_NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} is not the name of a shard, such as v1.g0.s0")
        version, generation, number = found.groups()
        return cls(int(version), int(generation), int(number))

    def __str__(self) -> str:
        return f"v{self.version}.g{self.generation}.s{self.number}"


def app_id(pipeline: str, shard: str) -> str:
    """The application id of a shard's Delta transactions.

    It is the key under which a table remembers the shard's last commit.
    """
    return f"{pipeline}/v{ShardId.parse(shard).version}/{shard}"


class AppShard(NamedTuple):
    """The shard that an application id names."""

    pipeline: str
    version: int
    shard: str

    @classmethod
    def parse(cls, app: str) -> Self | None:
        """None if the id is no shard's; a compaction has one, too."""
        found = _APP.fullmatch(app)
        if found is None:
            return None
        pipeline, version, shard = found.groups()
        return cls(pipeline, int(version), shard)
