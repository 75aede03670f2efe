"""A new version of a live pipeline, by the commands that a person gives, beside real workers that are killed
on the way.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from support.commands import run_command
from support.fleet import START_SECONDS, Stream, feed
from support.live_stream import MODULE
from support.waiting import wait_until

from hindcast.installation import Installation
from hindcast.serving.reading import read
from hindcast.versions.listing import list_versions

SECOND = MODULE.replace('Table("{name}"', 'Table("{name}_v2"').replace(
    'F.avg("ask").alias("avg_ask")', 'F.avg("ask").alias("avg_ask"), F.max("ask").alias("max_ask")'
)


def hindcast(stream: Stream, *arguments: str, code: int = 0) -> Any:
    """What the command printed, as JSON."""
    done = run_command(stream.settings, *arguments, "--output", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr


def state(stream: Stream, version: int) -> str:
    return next(
        str(row["state"])
        for row in list_versions(Installation(stream.settings), stream.name)
        if row["version"] == version
    )


def seen(stream: Stream) -> Counter[Any]:
    """What readers get: how often each window and ticker."""
    return Counter(
        (row["window"]["end"], row["ticker"])
        for row in read(stream.name, stream.settings).arrow().to_pylist()
    )


def test_a_version_catches_up_is_proved_promoted_and_backed_out_while_workers_die(stream: Stream) -> None:
    """The version is deployed while a worker runs; its worker is killed with -9 before it is proved, and
    again while it is active.
    """
    fleet, name = stream.fleet, stream.name
    first, second, third = feed(3)
    stream.send(first)
    one = fleet.start()
    stream.wait_owned_by(one)
    stream.wait_read()
    text = SECOND.format(topic=stream.topic, shards=2, name=name, version=2)
    (stream.settings.pipelines_dir / f"{name}_v2.py").write_text(text)

    assert "max_ask is added" in hindcast(
        stream, "reprocess", name, "--version", "2", "--from", "earliest", code=2
    )
    begun = hindcast(
        stream, "reprocess", name, "--version", "2", "--from", "earliest", "--new-table", "--by", "ada"
    )
    assert begun["seam_ms"] is None
    wait_until(
        lambda: stream.events("shard_taken")[-1]["shard"].startswith("v2."),
        START_SECONDS,
        "the worker has loaded version 2",
    )
    fleet.kill(one)
    stream.send(second)
    two = fleet.start()
    stream.wait_owned_by(two)
    wait_until(lambda: state(stream, 2) == "live", START_SECONDS, "version 2 has caught up")
    stream.wait_read()
    stream.wait_filed()

    assert "no verdict" in hindcast(stream, "promote", name, "--version", "2", code=2)
    verdict = hindcast(stream, "validate", name, "--version", "2", "--all")
    assert (verdict["unexplained"], verdict["version"], verdict["passed"]) == (0, 2, True)
    compared = hindcast(stream, "versions", "compare", name)
    assert (compared["columns_only_new"], compared["missing_windows"], compared["causes"]["version"]) == (
        ["max_ask"],
        0,
        0,
    )
    promoted = hindcast(stream, "promote", name, "--version", "2", "--yes")
    assert 0 <= promoted["seconds"] < 60
    assert read(name, stream.settings).pipeline.version == 2
    assert set(seen(stream).values()) == {1}

    fleet.kill(two)
    stream.send(third)
    three = fleet.start()
    stream.wait_owned_by(three)
    stream.wait_read()
    back = hindcast(stream, "back-out", name, "--yes")
    assert 0 <= back["seconds"] < 60
    assert read(name, stream.settings).pipeline.version == 1
    assert set(seen(stream).values()) == {1}
    gone = hindcast(stream, "discard", name, "--version", "2", "--yes")
    assert f"sinks/{name}_v2" in gone["deleted"]
    assert set(fleet.owners(name)) == {"v1.g0.s0", "v1.g0.s1"}
    kinds = [row["kind"] for row in stream.events() if row["kind"].startswith(("reprocess", "version_"))]
    assert kinds == [
        "reprocess_started",
        "reprocess_caught_up",
        "version_promoted",
        "version_backed_out",
        "version_discarded",
    ]
