"""Read a version's history from its newest batches alone, whatever the number of those before.

A plan needs exact answers about the past, and the ledger has a row for each batch ever made. A
:class:`~hindcast.tables.ledger_history.HistoryBase` is what the oldest batches come to. Each plan leaves one:
what comes before its own range. So the next plan reads the batches of two ranges.

A base is used if it has all batches that it should have:

1. No reset took back one of them.
2. The batches after it go on, shard by shard, with the number after the shard's last one in it; or with the
   first one, if it has none of the shard.
3. Of a shard without a later batch in the ledger, the sink's fence says that there is none. The ledger may
   lack the last batches of a worker that died, or all of them, and gets them in earlier versions of the sink.

If one of these fails, or if a range begins before the base, an older base is tried, and in the end the whole
ledger is read.

An older ledger may have a million rows and no base. Then bases are made from it in parts, each from the one
before and the rows that follow, so that memory has the rows of one part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from hindcast.delta.arrow_dataset import Condition
from hindcast.partitions import AppShard
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import SinkEnd, sink_end
from hindcast.tables.ledger import Ledger, LedgerRow, Undone
from hindcast.tables.ledger_history import History, is_below
from hindcast.tables.oldest_batches import HistoryBase, HistoryTooShortError, Place
from hindcast.tables.table_names import ControlTable

#: So many bases of a version are kept, the newest: two days of hourly ranges.
KEPT = 48
#: A base that stands for fewer batches more than the one before it saves too little.
LEAST_BATCHES = 200

#: The versions of the sink of one part, where a ledger without a base is read in parts.
PART = 10_000

_BEFORE_EVERY_TIME_MS = -(2**63)

#: By shard of one version of a pipeline, the last batch that the sink's fence names.
FencedBatches = Callable[[], Mapping[str, int]]


def fenced_by(url: str, storage_options: dict[str, str], pipeline: str, version: int) -> FencedBatches:
    """What the fence of a pipeline's sink says, which is read when it is asked for.

    :param url: of the sink
    """

    def fenced() -> Mapping[str, int]:
        end = sink_end(url, storage_options)
        if end is None:
            return {}
        return batches_in(end, pipeline, version)

    return fenced


def batches_in(end: SinkEnd, pipeline: str, version: int) -> dict[str, int]:
    """By shard of the version, the last batch that the sink has."""
    found = {}
    for application, fence in end.fences.items():
        app = AppShard.parse(application)
        if app is not None and (app.pipeline, app.version) == (pipeline, version):
            found[app.shard] = fence.batch
    return found


_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class LedgerSnapshot:
    """What the ledger said of one version of a pipeline at one moment.

    ``resets``: what took batches back. ``bases``: those in effect, the newest last. ``in_sink``: by shard,
    the last batch in the sink at a moment before.
    """

    pipeline: str
    version: int
    ledger: Ledger
    resets: Sequence[LedgerRow]
    bases: Sequence[HistoryBase]
    in_sink: Mapping[str, int]

    def histories(self) -> Iterator[History]:
        """The history of the version, first from the newest base on, then from older ones, then whole. Take
        the first that has the answers.
        """
        bases = self.bases or self._bases_of_parts()
        back = 1
        while back <= len(bases):
            base = bases[-back]
            rows = self.ledger.batches(self.pipeline, self.version, sink_after=base.sink_version)
            if _goes_on(base, rows, self.in_sink):
                yield History.of(rows, base)
            back *= 2
        yield History.of(self.ledger.batches(self.pipeline, self.version))

    def _bases_of_parts(self) -> Sequence[HistoryBase]:
        """Bases of all but the newest rows, the newest last. None if one part has all rows."""
        last = self.ledger.newest(self.pipeline, self.version)
        newest = max((row.sink_version for row in last), default=-1)
        bases: list[HistoryBase] = []
        base: HistoryBase | None = None
        after = -1
        for end in range(PART, newest, PART):
            rows = self.ledger.batches(self.pipeline, self.version, sink_after=after, sink_to=end)
            after = end
            if not rows:
                continue
            history = History.of(rows, base)
            base = base_below(history, history.committed)
            if base is None or base.sink_version < max(row.sink_version for row in rows):
                break  # a batch leaves a gap, which no base hides
            bases.append(base)
        return bases

    def unkept(self, history: History) -> HistoryBase | None:
        """The base of a history of this ledger, if it was made just now."""
        if history.base in self.bases:
            return None
        return history.base

    def undone(self) -> list[Undone]:
        """What resets took back, the oldest first."""
        return self.ledger.undone(self.pipeline, self.version)

    def answer(self, ask: Callable[[History], _Answer]) -> _Answer:
        """What the first history says that has the answer: after a month the whole ledger is gigabytes."""
        for history in self.histories():
            try:
                return ask(history)
            except HistoryTooShortError:
                continue
        raise AssertionError("the last history is the whole ledger")

    def excluding(self) -> list[LedgerRow]:
        """The batches that left records out."""
        return self.ledger.excluding(self.pipeline, self.version)

    def reached(self) -> dict[str, LedgerRow]:
        """The last batch of each shard, also one that a reset took back."""
        return self.ledger.reached(self.pipeline, self.version)


@dataclass(frozen=True)
class LedgerBases:
    """Reads and writes the bases."""

    tables: ControlTables

    def snapshot(self, pipeline: str, version: int, fenced: FencedBatches) -> LedgerSnapshot:
        """The ledger of a version as it is now, and the bases from which it can be read.

        The fence is read before the ledger, so that the ledger may lack a batch that the fence names only if
        its worker has not filed it yet.

        :raises StoreUnavailableError: if the store does not answer
        """
        kept = self._read(pipeline, version)
        fences: Mapping[str, int] = {}
        if kept:
            fences = fenced()
        ledger = Ledger(self.tables).pinned()
        resets = ledger.resets(pipeline, version)
        bases = [base for base in kept if _is_in_effect(base, resets)]
        return LedgerSnapshot(pipeline, version, ledger, resets, bases, _last_in_sink(resets, fences))

    def keep_older(self, pipeline: str, version: int, fenced: FencedBatches, before: datetime) -> None:
        """Keep a base of the batches that were committed before this time, if it spares enough.

        :raises StoreUnavailableError: if the store does not answer
        """
        snapshot = self.snapshot(pipeline, version, fenced)
        history = next(snapshot.histories())
        older = [row for row in history.rows if row.committed_at < before]
        base = snapshot.unkept(history)
        if older:
            base = worth_keeping(history, History.of(older, history.base).committed) or base
        if base is not None:
            self.add(pipeline, version, base)

    def add(self, pipeline: str, version: int, base: HistoryBase) -> None:
        """Keep a base, and forget the oldest ones.

        :raises StoreUnavailableError: if it could not be written
        """
        row = {
            "pipeline": pipeline,
            "version": version,
            "sink_version": base.sink_version,
            "summary": _text(base),
            "made_at": datetime.now(UTC),
        }

        def with_base(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            others = [known for known in rows if known["sink_version"] != base.sink_version]
            return sorted([*others, row], key=lambda known: int(known["sink_version"]))[-KEPT:]

        self.tables.replace(ControlTable.LEDGER_BASES, {"pipeline": pipeline, "version": version}, with_base)

    def _read(self, pipeline: str, version: int) -> list[HistoryBase]:
        of_version: list[Condition] = [("pipeline", "=", pipeline), ("version", "=", version)]
        rows = self.tables.rows(ControlTable.LEDGER_BASES, of_version)
        in_order = sorted(rows, key=lambda row: int(row["sink_version"]))
        return [_of_text(row["summary"]) for row in in_order]


def base_below(history: History, offsets: Mapping[int, int]) -> HistoryBase | None:
    """What the oldest batches come to: all before the first one that ends beyond the offsets.

    None if there are none, or if one of them leaves a gap.
    """
    if history.base is not None and history.base.reaches_beyond(offsets):
        return None
    below = _rows_below(history, offsets)
    if not below:
        return history.base
    old = History(below, history.base)
    committed = old.committed
    if not all(is_below(row.end_offsets, committed) for row in below):
        return None
    return _base_of(old)


def _rows_below(history: History, offsets: Mapping[int, int]) -> tuple[LedgerRow, ...]:
    """The first rows, up to one that ends beyond the offsets. Rows of one version of the sink, which are of
    two tables, stay together.
    """
    below: list[LedgerRow] = []
    for row in history.rows:
        if not is_below(row.end_offsets, offsets):
            while below and below[-1].sink_version >= row.sink_version:
                below.pop()
            break
        below.append(row)
    return tuple(below)


def _base_of(history: History) -> HistoryBase:
    """What all batches of a history come to. It has rows, and no gap."""
    places = dict(history.places)
    first = history.first
    for partition, chain in history.chains.items():
        if chain:
            last = chain[-1]
            places[partition] = Place(first[partition], last.end, last.watermark_ms)
    shards: dict[str, int] = {}
    commits = []
    events = []
    if history.base is not None:
        shards.update(history.base.shards)
        commits.append(history.base.latest_commit_at)
        events.append(history.base.latest_event_ms)
    for row in history.rows:
        shards[row.shard] = max(row.batch, shards.get(row.shard, 0))
        commits.append(row.committed_at)
        events.append(_latest_event_ms(row))
    return HistoryBase(
        sink_version=max(row.sink_version for row in history.rows),
        last_read=history.last_read,
        places=places,
        shards=shards,
        latest_event_ms=_greatest(events),
        latest_commit_at=max(commits),
    )


def _latest_event_ms(row: LedgerRow) -> int | None:
    """The greatest event time of a batch's usable rows; before every time if it has none, None if that is not
    known.
    """
    if row.max_event_ms is not None:
        return row.max_event_ms
    if row.may_have_usable_rows:
        return None
    return _BEFORE_EVERY_TIME_MS


def _greatest(values: Sequence[int | None]) -> int | None:
    """None if one of them is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return max(known)


def worth_keeping(history: History, offsets: Mapping[int, int]) -> HistoryBase | None:
    """The base of what comes before the offsets, if it spares the next plan enough."""
    base = base_below(history, offsets)
    if base is None or base is history.base:
        return None
    spared = sum(1 for row in history.rows if row.sink_version <= base.sink_version)
    if spared < LEAST_BATCHES:
        return None
    return base


def _is_in_effect(base: HistoryBase, resets: Iterable[LedgerRow]) -> bool:
    """Condition 1."""
    return all(base.shards.get(reset.shard, -1) <= reset.kept for reset in resets)


def _last_in_sink(resets: Iterable[LedgerRow], fences: Mapping[str, int]) -> dict[str, int]:
    """By shard, the last batch in the sink. The fence alone still names one that was taken back."""
    in_sink = dict(fences)
    for reset in resets:
        in_sink[reset.shard] = min(reset.kept, in_sink.get(reset.shard, reset.kept))
    return in_sink


def _goes_on(base: HistoryBase, rows: Iterable[LedgerRow], in_sink: Mapping[str, int]) -> bool:
    """Conditions 2 and 3.

    :param in_sink: by shard, the last batch in the sink
    """
    following: dict[str, int] = {}
    for row in rows:
        following[row.shard] = min(row.batch, following.get(row.shard, row.batch))
    for shard in base.shards.keys() | following.keys() | in_sink.keys():
        last = base.shards.get(shard, 0)
        if shard in following:
            if following[shard] != last + 1:
                return False
        elif in_sink.get(shard, 0) > last:
            return False
    return True


def _text(base: HistoryBase) -> str:
    summary = asdict(base)
    summary["latest_commit_at"] = base.latest_commit_at.isoformat()
    return json.dumps(summary)


def _of_text(text: str) -> HistoryBase:
    summary = json.loads(text)
    places = {}
    for partition, place in summary["places"].items():
        places[int(partition)] = Place(**place)
    return HistoryBase(
        sink_version=summary["sink_version"],
        last_read=summary["last_read"],
        places=places,
        shards=summary["shards"],
        latest_event_ms=summary["latest_event_ms"],
        latest_commit_at=datetime.fromisoformat(summary["latest_commit_at"]),
    )
