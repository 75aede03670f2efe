"""Erase what is kept of a topic's records with certain keys: in its archive, in late rows, in dead letters.

A row stays where it was, so that offsets still add up, and loses what it held: key, value, headers,
traceback.

1. find the places of the records in the archive;
2. erase the late rows at these places, and those with the keys;
3. erase the dead letters with the keys;
4. erase the records in the archive.

The archive comes last because the places come from it: a run that is killed at any moment is finished by the
next one. A second run finds nothing, unless more was filed or archived in between.

It does not reach the topic itself, whose retention the broker keeps, nor the pipelines' own tables. The files
that held the rows stay on disk until the tables' next vacuum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.archive.erased_records import ERASED_HEADERS
from hindcast.archive.table import ArchiveTable
from hindcast.errors import BadInputError, BrokerUnavailableError, UnknownArchiveError, UnknownTopicError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.pipeline import TOPIC_STRIDE, check_topic
from hindcast.processes.crash_points import reach
from hindcast.tables import side_rows
from hindcast.tables.archive_schema import BOUNDED
from hindcast.tables.event_log import EventKind
from hindcast.tables.rewritten_rows import Mask, RowChange, count_rows, rewrite_rows, searched, with_values
from hindcast.tables.schema import ORDERED_BY
from hindcast.tables.table_names import ControlTable

_PLACE = ("partition", "offset")

#: By partition, the offsets of some records.
_Places = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Erased:
    """What was erased of a topic, or would be.

    ``keys``: how many were asked for. ``archived``, ``late_rows``, ``dead_letters``: the rows. ``in_topic``:
    offsets that the topic still holds, of whatever key. ``not_archived``: those of them that its archive
    lacks. Both are None if the broker cannot tell; the last one also without an archive.
    """

    topic: str
    keys: int
    archived: int
    late_rows: int
    dead_letters: int
    in_topic: int | None
    not_archived: int | None


def erase_keys(
    installation: Installation, topic: str, keys: Collection[bytes], *, dry_run: bool = False
) -> Erased:
    """Erase all that is kept of the topic's records with these keys; see the module.

    :param dry_run: only count
    :raises BadInputError: without a key
    :raises StoreUnavailableError: if a table cannot be read or written; the same again does the rest
    """
    check_topic(topic)
    if not keys:
        raise BadInputError(problem="No key is given", cure="Name at least one.")
    erasure = _Erasure(installation, topic, keys)
    return erasure.run(dry_run=dry_run)


class _Erasure:
    """One run."""

    def __init__(self, installation: Installation, topic: str, keys: Collection[bytes]) -> None:
        self._installation = installation
        self._options = installation.settings.storage_options
        self._topic = topic
        self._keys = pa.array(sorted(set(keys)), pa.binary())
        self._archive = ArchiveTable(installation.settings, topic)

    def run(self, *, dry_run: bool) -> Erased:
        in_topic, not_archived = self._left_to_the_topic()
        reach("erase.1")
        places = self._archived_places()
        reach("erase.2")
        late_rows = self._control_rows(ControlTable.LATE_ROWS, self._late_rows(places), dry_run=dry_run)
        reach("erase.3")
        letters = self._control_rows(ControlTable.DEAD_LETTERS, self._dead_letters(), dry_run=dry_run)
        reach("erase.4")
        archived = sum(len(offsets) for offsets in places.values())
        if archived and not dry_run:
            archived = rewrite_rows(self._archive.open, self._archived_records(), self._options, BOUNDED)
        done = Erased(self._topic, len(self._keys), archived, late_rows, letters, in_topic, not_archived)
        if not dry_run:
            self._record(done)
        return done

    def _left_to_the_topic(self) -> tuple[int | None, int | None]:
        """How many offsets the topic still holds, and how many of them its archive lacks."""
        try:
            with TopicOffsets(self._installation.settings) as offsets:
                earliest = offsets.earliest(self._topic)
                latest = offsets.latest(self._topic)
        except (BrokerUnavailableError, UnknownTopicError):
            return None, None
        held = sum(latest[partition] - first for partition, first in earliest.items())
        try:
            ends = self._archive.manifest().ends
        except UnknownArchiveError:
            return held, None
        lacking = 0
        for partition, first in earliest.items():
            lacking += max(latest[partition] - max(ends.get(partition, 0), first), 0)
        return held, lacking

    def _archived_places(self) -> _Places:
        """Step 1."""
        try:
            table = self._archive.open()
        except UnknownArchiveError:
            return {}
        places: dict[int, list[int]] = defaultdict(list)
        for rows in searched(table, (*_PLACE, "key"), self._options):
            found = rows.filter(self._has_key(rows))
            for partition, offset in zip(*(found[name].to_pylist() for name in _PLACE), strict=True):
                places[partition].append(offset)
        return places

    def _has_key(self, rows: pa.Table) -> Mask:
        """Which rows have one of the keys; none of a file without keys."""
        if "key" not in rows.column_names:
            return pa.repeat(pa.scalar(value=False), rows.num_rows)
        return pc.is_in(rows["key"], value_set=self._keys)

    def _of_topic(self, rows: pa.Table) -> Mask:
        return pc.fill_null(pc.equal(rows["topic"], self._topic), fill_value=False)

    def _archived_records(self) -> RowChange:
        """Step 4."""

        def change(rows: pa.Table, mask: Mask) -> pa.Table:
            return with_values(rows, mask, {"key": None, "value": None, "headers": ERASED_HEADERS})

        return RowChange(("key",), self._has_key, change)

    def _dead_letters(self) -> RowChange:
        """Step 3."""

        def find(rows: pa.Table) -> Mask:
            return pc.and_(self._of_topic(rows), self._has_key(rows))

        change = partial(side_rows.without_contents, ControlTable.DEAD_LETTERS, side_rows.ERASED)
        return RowChange(("topic", "key"), find, change)

    def _late_rows(self, places: _Places) -> RowChange:
        """Step 2. Late rows of an older Hindcast have no key: the archive alone knows theirs."""
        by_partition = {partition: pa.array(offsets, pa.int64()) for partition, offsets in places.items()}
        name = ControlTable.LATE_ROWS

        def find(rows: pa.Table) -> Mask:
            of_topic = pc.multiply(pc.divide(rows["partition"], TOPIC_STRIDE), TOPIC_STRIDE)
            partitions = pc.subtract(rows["partition"], of_topic)
            wanted = self._has_key(rows)
            for partition, offsets in by_partition.items():
                here = pc.and_(pc.equal(partitions, partition), pc.is_in(rows["offset"], value_set=offsets))
                wanted = pc.or_(wanted, here)
            return pc.and_(pc.and_(self._of_topic(rows), wanted), side_rows.has_contents(name, rows))

        change = partial(side_rows.without_contents, name, side_rows.ERASED)
        return RowChange(("topic", *_PLACE, "key", "value"), find, change)

    def _control_rows(self, name: ControlTable, change: RowChange, *, dry_run: bool) -> int:
        tables = self._installation.tables
        found = tables.find(name)
        if found is None:
            return 0
        if dry_run:
            return count_rows(found, change, self._options)
        return rewrite_rows(partial(tables.open, name), change, self._options, ORDERED_BY[name])

    def _record(self, done: Erased) -> None:
        """Leave an event. It does not name the keys."""
        self._installation.event_log.record(
            EventKind.KEYS_ERASED,
            f"What is kept of {done.keys} keys of {self._topic} was erased: "
            f"{done.archived} archived records, {done.late_rows} late rows, "
            f"{done.dead_letters} dead letters.",
            topic=self._topic,
            keys=done.keys,
            archived=done.archived,
            late_rows=done.late_rows,
            dead_letters=done.dead_letters,
        )
