"""What the ledger says about a stream's past: which offsets each batch read, and which windows were final after it.

Pure Python over :class:`~hindcast.tables.ledger.LedgerRow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hindcast.partitions import Offsets
from hindcast.tables.ledger import LedgerRow


@dataclass(frozen=True)
class Segment:
    """The offsets [start, end) of one partition that one batch was the first to read.

    ``watermark_ms`` is the greatest watermark of the partition's batches up to this one: windows that end at or before it are final.
    ``late_ms`` is the one under which these rows came: a row is late for each window that ends at or before it.
    """

    partition: int
    start: int
    end: int
    watermark_ms: int
    row: LedgerRow

    @property
    def late_ms(self) -> int:
        return self.row.late_ms(self.partition)


@dataclass(frozen=True)
class History:
    """The committed batches of one version of a pipeline.

    A partition's chain is its batches in the order of their commits. It stops before the first batch that leaves a gap: the ledger is
    written a little after the sink, and what lies past a gap has not been repaired yet. It goes on across generations of shards: a new
    shard begins where those that had its partitions ended. What a rebuilt shard reads again has no batch, so it stays with the batch that
    read it first.
    """

    rows: tuple[LedgerRow, ...]

    @classmethod
    def of(cls, rows: Iterable[LedgerRow]) -> History:
        return cls(tuple(sorted(rows, key=lambda row: (row.sink_version, row.shard, row.batch))))

    @cached_property
    def chains(self) -> dict[int, tuple[Segment, ...]]:
        """Partition -> its segments in order, at least one; empty batches are segments too, because they may move the watermark."""
        chains: dict[int, list[Segment]] = {}
        broken: set[int] = set()
        for row in self.rows:
            for partition in sorted(row.end_offsets):
                chain = chains.setdefault(partition, [])
                first, last = row.start_offsets.get(partition, 0), row.end_offsets[partition]
                reached = chain[-1].end if chain else first
                if partition in broken or first > reached:
                    broken.add(partition)
                    continue
                watermark_ms = max(row.final_ms(partition), chain[-1].watermark_ms if chain else 0)
                chain.append(Segment(partition, reached, max(last, reached), watermark_ms, row))
        return {partition: tuple(chain) for partition, chain in sorted(chains.items())}

    @property
    def first(self) -> Offsets:
        """The offset at which the stream began, by partition."""
        return {partition: chain[0].start for partition, chain in self.chains.items()}

    @property
    def committed(self) -> Offsets:
        """The offset after the last one that the ledger knows to be in the sink, by partition."""
        return {partition: chain[-1].end for partition, chain in self.chains.items()}

    def audited(self, filed: Mapping[str, int]) -> Offsets:
        """The offset up to which late and poison rows are filed as well. ``filed``: shard -> its last batch that the audit has filed."""
        reached = {}
        for partition, chain in self.chains.items():
            end = chain[0].start
            for segment in chain:
                if segment.row.batch > filed.get(segment.row.shard, -1):
                    break
                end = segment.end
            reached[partition] = end
        return reached

    def before_final(self, window_end_ms: int) -> Offsets:
        """By partition, the end of the last batch after which a window that ends at that time was still open."""
        found = {}
        for partition, chain in self.chains.items():
            open_still = [segment.end for segment in chain if segment.watermark_ms < window_end_ms]
            found[partition] = open_still[-1] if open_still else chain[0].start
        return found

    def horizon_ms(self, offsets: Mapping[int, int], partitions: Iterable[int]) -> int:
        """The windows that were final once the stream had read up to ``offsets``: all that end at or before the result, 0 for none.

        It is the least, over the partitions, of the watermark after the last batch that lies wholly below ``offsets``. It never falls
        as offsets rise, so that ranges which follow on each other judge each window exactly once: (horizon of start, horizon of end].
        """
        horizons = [_last_watermark_ms(self.chains.get(partition, ()), offsets) for partition in partitions]
        return min(horizons, default=0)

    def reading(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[Segment]:
        """The non-empty segments that overlap [start, end), in the order (partition, offset)."""
        return [
            segment
            for partition in sorted(end)
            for segment in self.chains.get(partition, ())
            if segment.start < min(segment.end, end[partition]) and segment.end > start[partition]
        ]

    def batches(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[LedgerRow]:
        """The batches that first read offsets of [start, end), each once."""
        return list({(segment.row.shard, segment.row.batch): segment.row for segment in self.reading(start, end)}.values())

    def first_needed(self, start: Mapping[int, int], earliest_event_ms: Mapping[int, int]) -> Offsets:
        """Where to begin reading so as to meet every row that was read before ``start``, by partition.

        :param earliest_event_ms: only rows at or after it (event time, by partition) are needed
        """
        needed = dict(start)
        for partition, offset in start.items():
            for segment in self.chains.get(partition, ()):
                if segment.start >= offset:
                    break
                if segment.start < segment.end and may_hold(segment.row, earliest_event_ms[partition]):
                    needed[partition] = segment.start
                    break
        return needed


def may_hold(row: LedgerRow, earliest_event_ms: int) -> bool:
    """Whether the batch may hold a usable row at or after ``earliest_event_ms``; a batch of which that is unknown may."""
    if row.max_event_ms is not None:
        return row.max_event_ms >= earliest_event_ms
    return row.input_rows is None or row.poison_rows is None or row.input_rows > row.poison_rows


def _last_watermark_ms(chain: Sequence[Segment], offsets: Mapping[int, int]) -> int:
    # A partition that was added later begins with what was final for the partitions that had its keys before.
    watermark_ms = chain[0].row.floors.get(chain[0].partition, 0) if chain else 0
    for segment in chain:
        if any(end > offsets.get(partition, 0) for partition, end in segment.row.end_offsets.items()):
            break
        watermark_ms = segment.watermark_ms
    return watermark_ms
