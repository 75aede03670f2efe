"""What a run comes to: its commits, latencies by the broker's timestamps, and CPU of all its processes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import psutil
import pyarrow.parquet as pq
from benchmarks.speed.workload import epoch_ms
from support.benchmark_home import with_children

from hindcast.tables.ledger import LedgerRow


@dataclass(frozen=True)
class Commit:
    """The offsets up to which a side had read when a commit of it became visible, epoch milliseconds."""

    at_ms: float
    ends: Mapping[int, int]


#: The status of an entry of a manifest whose file was in the table before.
_DELETED = 2
#: Of one record: its partition, its offset, and the broker's timestamp in epoch milliseconds.
Sample = tuple[int, int, int]


def commits_of_ledger(rows: Iterable[LedgerRow]) -> list[Commit]:
    """The commits of a pipeline of Hindcast's."""
    found = [Commit(row.committed_at.timestamp() * 1000, dict(row.end_offsets)) for row in rows]
    return sorted(found, key=lambda commit: commit.at_ms)


def records_in(commits: Iterable[Commit]) -> int:
    """How many records of a topic that begins with offset 0 are in commits."""
    ends: dict[int, int] = {}
    for commit in commits:
        for partition, end in commit.ends.items():
            ends[partition] = max(ends.get(partition, 0), end)
    return sum(ends.values())


def latencies(samples: Iterable[Sample], commits: Sequence[Commit]) -> list[float]:
    """Seconds from the broker's timestamp of each record to the first commit that has it.

    :param commits: in the order of their times
    :raises SystemExit: if a record is in no commit
    """
    ends: dict[int, list[int]] = {}
    times: dict[int, list[float]] = {}
    for commit in commits:
        for partition, end in commit.ends.items():
            known = ends.setdefault(partition, [0])
            at = times.setdefault(partition, [0.0])
            if end > known[-1]:
                known.append(end)
                at.append(commit.at_ms)
    found = []
    for partition, offset, appended_ms in samples:
        first = bisect_right(ends.get(partition, [0]), offset)
        if first == len(ends.get(partition, [0])):
            raise SystemExit(f"No commit has offset {offset} of partition {partition}.")
        found.append((times[partition][first] - appended_ms) / 1000)
    return found


def read_at_ms(commits: Iterable[Commit], rows: int) -> float:
    """When readers could first see so many rows, epoch milliseconds.

    :param commits: in the order of their times
    :raises SystemExit: if they never could
    """
    ends: dict[int, int] = {}
    for commit in commits:
        for partition, end in commit.ends.items():
            ends[partition] = max(end, ends.get(partition, 0))
        if sum(ends.values()) >= rows:
            return commit.at_ms
    raise SystemExit(f"Only {sum(ends.values())} of {rows} records are in a commit.")


def commits_of_plain(folder: Path, topic: str) -> list[Commit]:
    """The commits of a plain stream: Delta's log says when a batch was committed, Spark's plan what it read."""
    found = []
    for batch, at_ms in sorted(_committed(folder).items()):
        plan = (folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        ends = json.loads(plan[-1])[topic]
        found.append(Commit(at_ms, {int(partition): end for partition, end in ends.items()}))
    return found


def _committed(folder: Path) -> dict[int, float]:
    """By batch, when it was committed; without a table, when Spark noted that the sink had it."""
    log = folder / "table" / "_delta_log"
    if not log.is_dir():
        commits = (folder / "checkpoint" / "commits").glob("[0-9]*")
        return {int(path.name): path.stat().st_mtime * 1000 for path in commits}
    found: dict[int, float] = {}
    for path in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "txn" in action:
                found[action["txn"]["version"]] = path.stat().st_mtime * 1000
    return found


def commits_of_flink(folder: Path) -> list[Commit]:
    """The commits of the Flink job: a snapshot of Iceberg's names the newest checkpoint that it has, and the job
    noted what each checkpoint had read.
    """
    read: dict[int, dict[int, int]] = {}
    notes = folder / "checkpoints"
    if notes.exists():
        for line in notes.read_text().splitlines():
            checkpoint, partition, end = (int(word) for word in line.split())
            read.setdefault(checkpoint, {})[partition] = end
    found = []
    for snapshot in _iceberg(folder).get("snapshots", []):
        newest = snapshot["summary"].get("flink.max-committed-checkpoint-id")
        if newest is not None and int(newest) in read:
            found.append(Commit(snapshot["timestamp-ms"], read[int(newest)]))
    return sorted(found, key=lambda commit: commit.at_ms)


def _iceberg(folder: Path) -> dict[str, Any]:
    """What the newest metadata of the job's table says; nothing before there is any."""
    versions = list((folder / "table" / "bench" / "stats" / "metadata").glob("v*.metadata.json"))
    if not versions:
        return {}
    newest = max(versions, key=lambda path: int(path.name.split(".")[0].removeprefix("v")))
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def rows_of_flink(folder: Path) -> list[dict[str, Any]]:
    """The rows of the newest snapshot of the Flink job's table: ticker, end_ms, trades, min_ask, avg_ask.

    A job that ends between a checkpoint and its commit leaves whole files that no snapshot names.

    :raises SystemExit: if its files have another number of rows than it says
    """
    newest = _iceberg(folder)["snapshots"][-1]
    rows: list[dict[str, Any]] = []
    for path in _data_files(newest):
        rows += pq.read_table(path).to_pylist()
    named = int(newest["summary"]["total-records"])
    if named != len(rows):
        raise SystemExit(f"{folder} names {named} rows, and its files have {len(rows)}.")
    return [{**row, "end_ms": epoch_ms(row["window_end"])} for row in rows]


def _data_files(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """The data files of a snapshot of a table to which rows are only appended.

    As the format of Iceberg's tables has it (https://iceberg.apache.org/spec/#manifests): a snapshot names a list
    of manifests, and each of those names files.
    """
    for manifest in _avro_rows(snapshot["manifest-list"]):
        for entry in _avro_rows(manifest["manifest_path"]):
            if entry["status"] != _DELETED:
                yield _local(entry["data_file"]["file_path"])


def _avro_rows(url: str) -> list[dict[str, Any]]:
    with Path(_local(url)).open("rb") as file:
        return list(fastavro.reader(file))


def _local(url: str) -> str:
    """The path of a file of the local disk; Hadoop writes file:/a, file:///a or /a."""
    return urlsplit(url).path


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU that processes and all below them have used so far, those that ended and were waited for included."""
    total = 0.0
    for process in with_children(processes):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
