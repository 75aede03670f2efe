"""What the sink's log says, commit by commit as it lands, and what must be true of it at every moment.

The rules are written down here a second time, from the promises: nothing of the product's arithmetic is used.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocols.simulated_spark import Row
from protocols.topic import places, raises, window_end

from hindcast.partitions import Offsets
from hindcast.tables.ledger_history import History

Window = tuple[int, int]  # a partition, and the end of a window


#: The sink's log, and the one that has what was cut from it.
LOGS = ("_delta_log", "_older/_delta_log")


class BrokenPromiseError(AssertionError):
    """Something that was promised is not so."""


@dataclass
class Landed:
    """One batch as its commit names it."""

    version: int
    shard: str
    epoch: int
    batch: int
    start: Offsets
    end: Offsets
    late_ms: int
    watermark_ms: int
    floors: Offsets
    excluded: frozenset[tuple[int, int]]

    def is_late(self, partition: int, end_ms: int) -> bool:
        """Whether a row of this batch came too late for the window that ends then."""
        return end_ms <= max(self.late_ms, self.floors.get(partition, 0))

    def final_ms(self, partition: int) -> int:
        return max(self.watermark_ms, self.floors.get(partition, 0))


@dataclass
class SinkHistory:
    """The sink as a reader sees it after each commit.

    ``kept``: the batches in effect; ``live``: file -> its rows; ``fences``: shard -> epoch and batch;
    ``rows_at``: version -> what its files had; ``kept_at``: version -> the versions of the batches that were in
    effect.
    """

    folder: Path
    files: dict[str, list[Row]]
    version: int = 0  # the table was made by it
    kept: list[Landed] = field(default_factory=list)
    live: dict[str, list[Row]] = field(default_factory=dict)
    fences: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows_at: dict[int, frozenset[Row]] = field(default_factory=dict)
    kept_at: dict[int, list[int]] = field(default_factory=lambda: {0: []})
    kinds: Counter[str] = field(default_factory=Counter)

    def look(self) -> None:
        """Read what has landed since the last look.

        :raises BrokenPromiseError: if it must not have
        """
        while (entry := self._entry(self.version + 1)) is not None:
            self.version += 1
            actions = [json.loads(line) for line in entry.splitlines()]
            said: dict[str, Any] = {}
            for action in actions:
                said = action.get("commitInfo", said)
            self._check_log()
            self._land(json.loads(said.get("hindcast", "{}")), actions)

    def _entry(self, version: int) -> str | None:
        for log in LOGS:
            path = f"{self.folder}/{log}/{_entry_name(version)}"
            if os.path.exists(path):  # noqa: PTH110 - at each step
                return Path(path).read_text()
        return None

    def _check_log(self) -> None:
        """I11: each version is whole in one of the two logs."""
        there: set[str] = set()
        for log in LOGS:
            folder = f"{self.folder}/{log}"
            if os.path.isdir(folder):  # noqa: PTH112 - after each commit
                there.update(os.listdir(folder))  # noqa: PTH208
        for version in range(self.version):
            if _entry_name(version) not in there:
                raise BrokenPromiseError(f"I11: neither log of the sink has version {version}")

    def _land(self, said: dict[str, Any], actions: list[dict[str, Any]]) -> None:
        added = [action["add"]["path"] for action in actions if "add" in action]
        removed = [action["remove"]["path"] for action in actions if "remove" in action]
        before = self.rows
        for path in removed:
            if path not in self.live:
                raise BrokenPromiseError(f"I2: {path} is taken out, and is not there")
            del self.live[path]
        for path in added:
            self._check_new(path)
            self.live[path] = self.files[path]
        kind = said.get("kind", "joined files" if removed else None)
        if kind == "joined files" and self.rows != before:
            raise BrokenPromiseError(f"I2: files were joined, and rows {sorted(self.rows ^ before)} changed")
        self.kinds[str(kind)] += 1
        if kind in {"batch", "seal"}:
            self._check_fence(said)
        for action in actions:
            if "txn" in action and "/" in action["txn"]["appId"]:
                number = action["txn"]["version"]
                self.fences[action["txn"]["appId"].rpartition("/")[2]] = (number >> 32, number & 0xFFFFFFFF)
        if kind == "batch":
            landed = _landed(self.version, said)
            self._check_follows(landed)
            _check_excluded(landed)
            self.kept.append(landed)
            self._check_windows(landed)
        if kind == "reset":
            self._take_back(_offsets(said["start_offsets"]))
        self.rows_at[self.version] = self.rows
        self.kept_at[self.version] = [landed.version for landed in self.kept]

    def _check_new(self, path: str) -> None:
        """I2: no window is there twice."""
        there = {(partition, end) for rows in self.live.values() for partition, end, _ in rows}
        for partition, end, _ in self.files[path]:
            if (partition, end) in there:
                raise BrokenPromiseError(
                    f"I2: window {end} of partition {partition} was there, and is added by {path}"
                )

    def _check_fence(self, said: dict[str, Any]) -> None:
        """I3: epochs rise, a seal changes no batch, and a batch is the next one."""
        epoch, batch = self.fences.get(said["shard"], (0, 0))
        following = batch + 1 if said["kind"] == "batch" else batch
        if said["epoch"] < epoch:
            raise BrokenPromiseError(
                f"I3: epoch {said['epoch']} of {said['shard']} landed after epoch {epoch}"
            )
        if said["batch"] != following:
            raise BrokenPromiseError(
                f"I1: {said['kind']} {said['batch']} of {said['shard']} follows batch {batch}"
            )

    def _check_follows(self, landed: Landed) -> None:
        """I1: each partition is read on where it was read to."""
        reached = self.reached
        for partition, start in landed.start.items():
            if start != reached.get(partition, 0):
                raise BrokenPromiseError(
                    f"I1: batch {landed.batch} of {landed.shard} reads partition {partition} from {start} on; "
                    f"it was read up to {reached.get(partition, 0)}"
                )

    def _check_windows(self, landed: Landed) -> None:
        """I1: the windows that are final in the batch's partitions are there, with all that was on time."""
        there = self.windows
        for (partition, end), count in self.on_time(landed.end).items():
            final = end <= landed.final_ms(partition)
            if final and there.get((partition, end)) != count:
                raise BrokenPromiseError(
                    f"I1: window {end} of partition {partition} has {there.get((partition, end))} records after "
                    f"batch {landed.batch} of {landed.shard}, {count} were on time"
                )
            if not final and (partition, end) in there:
                raise BrokenPromiseError(
                    f"I10: window {end} of partition {partition} came before it was final"
                )

    def _take_back(self, offsets: Offsets) -> None:
        """A rewind has restored an older version: the batches after it are gone, and all that is live is what
        that version had.

        :param offsets: where the rewind says that reading begins again
        """
        for number in range(len(self.kept), -1, -1):
            kept = self.kept[:number]
            reached = _reached(kept)
            if any(reached.get(partition, 0) != offset for partition, offset in offsets.items()):
                continue
            rows = self.rows_at[kept[-1].version] if kept else frozenset()
            if rows == self.rows:
                self.kept = kept
                return
        raise BrokenPromiseError("I2: a rewind left what no version had")

    def check_past(self, history: History, version: int, unknown: Sequence[int]) -> None:
        """I7: what the ledger says at any moment was so. It knows each batch of the sink's version, but for
        those from the first one on that is said to be unknown.

        :param unknown: commits of the sink that the ledger is said to lack
        """
        to = min([version, *(commit - 1 for commit in unknown)])
        after = -1 if history.base is None else history.base.sink_version
        known = [row.sink_version for row in history.rows if row.sink_version <= to]
        in_sink = [batch for batch in self.kept_at[version] if after < batch <= to]
        if known != in_sink:
            raise BrokenPromiseError(
                f"I7: version {version} of the sink has the batches {in_sink} after {after} and up to {to}, and the "
                f"ledger is said to know {known}"
            )
        self._check_reached(history)

    def _check_reached(self, history: History) -> None:
        """I7: each partition began at 0, ends where a batch ended, and was final there up to where it was.

        After a rewind the places are no longer those of the batches that are kept, so nothing is checked.
        """
        if self.kinds["reset"] or self.kinds["reset-abandoned"]:
            return
        self.kinds["past"] += 1
        final: dict[int, set[tuple[int, int]]] = defaultdict(set)
        newest: dict[int, int] = defaultdict(int)
        for landed in self.kept:
            for partition, end in landed.end.items():
                newest[partition] = max(newest[partition], landed.final_ms(partition))
                final[partition].add((end, newest[partition]))
        for partition, end in history.committed.items():
            chain = history.chains[partition]
            final_ms = chain[-1].watermark_ms if chain else history.places[partition].watermark_ms
            if history.first[partition] != 0 or (end, final_ms) not in final[partition]:
                raise BrokenPromiseError(
                    f"I7: partition {partition} is said to be read from {history.first[partition]} to {end}, and "
                    f"to be final up to {final_ms}; it was so at {sorted(final[partition])}"
                )

    @property
    def reached(self) -> Offsets:
        """By partition, up to where it is read."""
        return _reached(self.kept)

    @property
    def rows(self) -> frozenset[Row]:
        """All that readers see. No two rows are of one window."""
        return frozenset(row for rows in self.live.values() for row in rows)

    @property
    def windows(self) -> dict[Window, int]:
        """What readers see."""
        return {(partition, end): count for rows in self.live.values() for partition, end, count in rows}

    def on_time(self, partitions: Offsets) -> dict[Window, int]:
        """The records of these partitions that have come on time, by window."""
        found: dict[Window, int] = defaultdict(int)
        for landed in self.kept:
            of_these = {partition: end for partition, end in landed.end.items() if partition in partitions}
            for partition, offset in places(landed.start, of_these):
                end = window_end(partition, offset)
                if not landed.is_late(partition, end) and (partition, offset) not in landed.excluded:
                    found[partition, end] += 1
        return found

    def late(self) -> set[tuple[int, int]]:
        """The places of the records that came too late."""
        found = set()
        for landed in self.kept:
            for place in set(places(landed.start, landed.end)) - landed.excluded:
                if landed.is_late(place[0], window_end(*place)):
                    found.add(place)
        return found

    def dead(self) -> set[tuple[int, int]]:
        """The places of the records that were left out."""
        return {place for landed in self.kept for place in landed.excluded}


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


def _check_excluded(landed: Landed) -> None:
    """I12: a batch names as left out the records on which the function raises, and no others."""
    raising = {place for place in places(landed.start, landed.end) if raises(*place)}
    if landed.excluded != raising:
        raise BrokenPromiseError(
            f"I12: batch {landed.batch} of {landed.shard} leaves out {sorted(landed.excluded)}; the function raises "
            f"on {sorted(raising)}"
        )


def _reached(kept: list[Landed]) -> Offsets:
    reached: Offsets = {}
    for landed in kept:
        reached.update(landed.end)
    return reached


def _landed(version: int, said: dict[str, Any]) -> Landed:
    return Landed(
        version,
        said["shard"],
        said["epoch"],
        said["batch"],
        _offsets(said["start_offsets"]),
        _offsets(said["end_offsets"]),
        said["late_watermark_ms"],
        said["watermark_ms"],
        _offsets(said["floors"]),
        frozenset(_places(said.get("excluded", ""))),
    )


def _places(text: str) -> list[tuple[int, int]]:
    """The places of the records that a commit says were left out."""
    found = []
    for partition, offsets in json.loads(text or "{}").items():
        found += [(int(partition), int(offset)) for offset in offsets]
    return found


def _offsets(text: str) -> Offsets:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
