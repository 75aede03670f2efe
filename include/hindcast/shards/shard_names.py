"""What a shard is named, and what its name says."""

from __future__ import annotations


def shard_name(version: int, generation: int, index: int) -> str:
    return f"v{version}.g{generation}.s{index}"


def shard_version(name: str) -> int:
    """The pipeline version a shard belongs to."""
    return int(name.removeprefix("v").partition(".")[0])


def shard_generation(name: str) -> int:
    """The generation a shard belongs to."""
    return int(name.split(".")[1].removeprefix("g"))


def app_id(pipeline: str, shard: str) -> str:
    """The application id of a shard's Delta transactions: the key under which a table remembers the shard's last commit."""
    return f"{pipeline}/v{shard_version(shard)}/{shard}"
