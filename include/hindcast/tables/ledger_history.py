"""What the ledger says about a stream's past: which offsets each batch read, and which windows were final
after it.

Pure Python over :class:`~hindcast.tables.ledger.LedgerRow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from hindcast.partitions import Offsets
from hindcast.tables.ledger import LedgerRow
from hindcast.tables.oldest_batches import HistoryBase, HistoryTooShortError, Place


@dataclass(frozen=True)
class Segment:
    """The offsets [start, end) of one partition that one batch was the first to read.

    ``watermark_ms`` is the greatest watermark of the partition's batches up to this one: windows that end at
    or before it are final. ``late_ms`` is the watermark under which these rows came: a row is late for each
    window that ends at or before it.
    """

    partition: int
    start: int
    end: int
    watermark_ms: int
    row: LedgerRow

    @property
    def late_ms(self) -> int:
        return self.row.late_ms(self.partition)

    def overlaps(self, start: int, end: int) -> bool:
        """Whether the segment shares an offset with [start, end)."""
        return max(self.start, start) < min(self.end, end)


@dataclass(frozen=True)
class History:
    """The committed batches of one version of a pipeline.

    A partition's chain is its batches in the order of their commits. It stops before the first batch that
    leaves a gap. The ledger is written a little after the sink, so what is past a gap has not been repaired
    yet. The chain continues across generations of shards: a new shard begins at the end of the shards that
    had its partitions. What a rebuilt shard reads again has no batch, so it stays with the batch that read it
    first.

    The oldest batches may be known by their ``base`` alone. Then every method either gives the answer that
    all batches would give, or raises :class:`HistoryTooShortError`.
    """

    rows: tuple[LedgerRow, ...]
    base: HistoryBase | None = None

    @classmethod
    def of(cls, rows: Iterable[LedgerRow], base: HistoryBase | None = None) -> History:
        in_order = sorted(rows, key=lambda row: (row.sink_version, row.shard, row.batch))
        return cls(tuple(in_order), base)

    @cached_property
    def chains(self) -> dict[int, tuple[Segment, ...]]:
        """Partition -> its segments in order, at least one if no batch of it is in the base. An empty batch
        is a segment too, because it may move the watermark.
        """
        chains: dict[int, list[Segment]] = {partition: [] for partition in self.places}
        broken: set[int] = set()
        for row in self.rows:
            for partition in row.end_offsets:
                if partition in broken:
                    continue
                chain = chains.setdefault(partition, [])
                segment = _next_segment(chain, self.places.get(partition), partition, row)
                if segment is None:
                    broken.add(partition)
                else:
                    chain.append(segment)
        return {partition: tuple(chains[partition]) for partition in sorted(chains)}

    @property
    def places(self) -> Mapping[int, Place]:
        """What the base says of each partition."""
        if self.base is None:
            return {}
        return self.base.places

    @property
    def shards(self) -> set[str]:
        """All shards that have a batch."""
        found = {row.shard for row in self.rows}
        if self.base is not None:
            found.update(self.base.shards)
        return found

    @property
    def first(self) -> Offsets:
        """The offset at which the stream began, by partition."""
        found = {partition: place.first for partition, place in self.places.items()}
        for partition, chain in self.chains.items():
            if partition not in found:
                found[partition] = chain[0].start
        return dict(sorted(found.items()))

    @property
    def committed(self) -> Offsets:
        """The offset after the last one that the ledger knows to be in the sink, by partition."""
        found = {partition: place.end for partition, place in self.places.items()}
        for partition, chain in self.chains.items():
            if chain:
                found[partition] = chain[-1].end
        return dict(sorted(found.items()))

    @property
    def last_read(self) -> int:
        """The sink's version of the last batch that read something; -1 if none did. What came before a record
        counts as one.
        """
        read = [row.sink_version for row in self.rows if row.reads or row.is_beginning]
        if self.base is not None:
            read.append(self.base.last_read)
        return max(read, default=-1)

    def up_to(self, sink_version: int) -> History:
        """The history as it was at a version of the sink."""
        if self.base is not None and sink_version < self.base.sink_version:
            raise HistoryTooShortError
        return History(tuple(row for row in self.rows if row.sink_version <= sink_version), self.base)

    def after(self, sink_version: int) -> tuple[LedgerRow, ...]:
        """The batches of the sink's versions after this one."""
        if self.base is not None and sink_version < self.base.sink_version:
            raise HistoryTooShortError
        return tuple(row for row in self.rows if row.sink_version > sink_version)

    def check_holds(self, commits: Iterable[int]) -> None:
        """:raises HistoryTooShortError: if one of these commits of the sink may be a batch of the base"""
        if (
            self.base is not None
            and min(commits, default=self.base.sink_version + 1) <= self.base.sink_version
        ):
            raise HistoryTooShortError

    def first_beyond(self, offsets: Mapping[int, int]) -> int | None:
        """The sink's version of the first batch that read something at or after the offsets; None if none
        did.

        A batch that read nothing brings no rows, so it may be on either side.
        """
        self._check_below(offsets)
        beyond = []
        for row in self.rows:
            past = any(offset > offsets.get(partition, 0) for partition, offset in row.end_offsets.items())
            if past and row.reads:
                beyond.append(row.sink_version)
        return min(beyond, default=None)

    def committed_since(self, partition: int, start: int, end: int, since: datetime) -> list[Segment]:
        """The segments of a partition that overlap [start, end) and whose batches were committed at that time
        or later.
        """
        place = self.places.get(partition)
        reaches_into_base = place is not None and start < place.end
        if self.base is not None and reaches_into_base and self.base.latest_commit_at >= since:
            raise HistoryTooShortError
        chain = self.chains[partition]
        return [s for s in chain if s.overlaps(start, end) and s.row.committed_at >= since]

    def audited(self, filed: Mapping[str, int]) -> Offsets:
        """The offset up to which late and poison rows are filed as well, by partition.

        :param filed: shard -> its last batch that the audit has filed
        """
        if self.base is not None:
            for shard, batch in self.base.shards.items():
                if batch > filed.get(shard, -1):
                    raise HistoryTooShortError
        reached = {partition: place.end for partition, place in self.places.items()}
        for partition, chain in self.chains.items():
            if partition not in reached:
                reached[partition] = chain[0].start
            for segment in chain:
                if segment.row.batch > filed.get(segment.row.shard, -1):
                    break
                reached[partition] = segment.end
        return dict(sorted(reached.items()))

    def before_final(self, window_end_ms: int) -> Offsets:
        """By partition, the end of the last batch after which a window that ends at that time was still
        open.

        If the next batch read nothing, both end at the same offsets, where the window was final already. Then
        it is the start of the last batch that read something.
        """
        found = {}
        for partition, chain in self.chains.items():
            place = self.places.get(partition)
            if place is not None and place.watermark_ms >= window_end_ms:
                raise HistoryTooShortError
            found[partition] = _open_to(chain, place, window_end_ms)
        return found

    def horizon_ms(self, offsets: Mapping[int, int], partitions: Iterable[int]) -> int:
        """The windows that were final once the stream had read up to ``offsets``: all that end at or before
        the result, 0 for none.

        It is the least watermark over the partitions. Each partition counts with the watermark after the last
        batch that is wholly below ``offsets``. The result never falls as offsets rise. So ranges that follow
        each other judge each window exactly once: (horizon of start, horizon of end].
        """
        self._check_below(offsets)
        horizons = []
        for partition in partitions:
            chain = self.chains.get(partition)
            if chain is None:
                return 0
            horizons.append(_last_watermark_ms(chain, self.places.get(partition), offsets))
        return min(horizons, default=0)

    def reading(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[Segment]:
        """The non-empty segments that overlap [start, end), in the order (partition, offset)."""
        found: list[Segment] = []
        for partition in sorted(end):
            place = self.places.get(partition)
            if place is not None and start[partition] < min(place.end, end[partition]):
                raise HistoryTooShortError
            chain = self.chains.get(partition, ())
            found += [segment for segment in chain if segment.overlaps(start[partition], end[partition])]
        return found

    def batches(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[LedgerRow]:
        """The batches that first read offsets of [start, end), each once."""
        batches = {}
        for segment in self.reading(start, end):
            batches[segment.row.shard, segment.row.batch] = segment.row
        return list(batches.values())

    def first_needed(self, start: Mapping[int, int], earliest_event_ms: Mapping[int, int]) -> Offsets:
        """By partition, where reading must begin to meet every needed row that was read before ``start``.

        :param earliest_event_ms: only rows at or after it (event time, by partition) are needed
        """
        needed = dict(start)
        for partition, offset in start.items():
            self._check_older(partition, offset, earliest_event_ms[partition])
            for segment in self.chains.get(partition, ()):
                if segment.start >= offset:
                    break
                if segment.start < segment.end and may_hold(segment.row, earliest_event_ms[partition]):
                    needed[partition] = segment.start
                    break
        return needed

    def _check_below(self, offsets: Mapping[int, int]) -> None:
        """:raises HistoryTooShortError: if a batch of the base is not wholly below the offsets"""
        if self.base is not None and self.base.reaches_beyond(offsets):
            raise HistoryTooShortError

    def _check_older(self, partition: int, offset: int, earliest_event_ms: int) -> None:
        """:raises HistoryTooShortError: if a batch of the base may hold a row that is needed"""
        place = self.places.get(partition)
        if self.base is None or place is None or place.first >= offset:
            return
        latest = self.base.latest_event_ms
        if latest is None or latest >= earliest_event_ms:
            raise HistoryTooShortError


def may_hold(row: LedgerRow, earliest_event_ms: int) -> bool:
    """Whether the batch may hold a usable row at or after ``earliest_event_ms``. It may if its event times
    are unknown.
    """
    if row.max_event_ms is not None:
        return row.max_event_ms >= earliest_event_ms
    return row.may_have_usable_rows


def _next_segment(
    chain: Sequence[Segment], place: Place | None, partition: int, row: LedgerRow
) -> Segment | None:
    """The batch's segment after the last one of the chain, or after its base; None if it leaves a gap."""
    start = row.start_offsets.get(partition, 0)
    watermark_ms = row.final_ms(partition)
    last: Segment | Place | None = place
    if chain:
        last = chain[-1]
    if last is not None:
        if start > last.end:
            return None
        start = last.end
        watermark_ms = max(watermark_ms, last.watermark_ms)
    end = max(row.end_offsets[partition], start)
    return Segment(partition, start, end, watermark_ms, row)


def _open_to(chain: Sequence[Segment], place: Place | None, window_end_ms: int) -> int:
    """:meth:`History.before_final` of one chain."""
    last_read_from: int | None = None
    if place is not None:
        open_to = place.end
    else:
        open_to = chain[0].start
        last_read_from = open_to
    for segment in chain:
        reads = segment.row.reads
        if segment.watermark_ms >= window_end_ms:
            if not reads:
                if last_read_from is None:  # that batch is in the base
                    raise HistoryTooShortError
                return last_read_from
            break
        open_to = segment.end
        if reads:
            last_read_from = segment.start
    return open_to


def _last_watermark_ms(chain: Sequence[Segment], place: Place | None, offsets: Mapping[int, int]) -> int:
    """The watermark after the last batch of the chain that is wholly below the offsets."""
    if place is not None:
        watermark_ms = place.watermark_ms
    else:
        # A partition that was added later begins with what was final for the partitions that had its keys
        # before.
        first = chain[0]
        watermark_ms = first.row.floors.get(first.partition, 0)
    for segment in chain:
        if not is_below(segment.row.end_offsets, offsets):
            break
        watermark_ms = segment.watermark_ms
    return watermark_ms


def is_below(ends: Mapping[int, int], offsets: Mapping[int, int]) -> bool:
    """Whether what ends there is wholly below the offsets."""
    return all(end <= offsets.get(partition, 0) for partition, end in ends.items())
