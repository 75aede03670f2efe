"""What must be true once a world is at rest. What must be true at every moment is in
:mod:`protocols.history`.
"""

from __future__ import annotations

from collections import Counter

from protocols.history import BrokenPromiseError
from protocols.side_tables import filed_rows
from protocols.topic import places, window_end
from protocols.world import World

from hindcast.tables.ledger_bases import LedgerBases, fenced_by
from hindcast.tables.ledger_history import History
from hindcast.tables.table_names import ControlTable


def check_end(world: World) -> None:
    """:raises BrokenPromiseError: if something is not so"""
    _ledger_is_the_sink(world)
    _late_as_the_ledger_says(world)
    _side_rows_are_filed_once(world)
    _bases_change_no_answer(world)


def _ledger_is_the_sink(world: World) -> None:
    """The ledger has the batches in effect, each once, as their commits name them."""
    found = {}
    for row in world.installation.ledger.batches(world.pipeline.name, 1):
        found[row.sink_version] = (
            row.shard,
            row.batch,
            row.start_offsets,
            row.end_offsets,
            row.late_watermark_ms,
            row.watermark_ms,
            {(partition, offset) for partition, offsets in row.excluded.items() for offset in offsets},
        )
    expected = {}
    for landed in world.sink.kept:
        expected[landed.version] = (
            landed.shard,
            landed.batch,
            landed.start,
            landed.end,
            landed.late_ms,
            landed.watermark_ms,
            landed.excluded,
        )
    if found != expected:
        lacking = [expected[version] for version in sorted(expected.keys() - found.keys())]
        more = [found[version] for version in sorted(found.keys() - expected.keys())]
        raise BrokenPromiseError(f"I7: the ledger lacks {lacking}, and has {more} more")


def _late_as_the_ledger_says(world: World) -> None:
    """The audit's arithmetic names exactly the records that the stream has dropped."""
    history = History.of(world.installation.ledger.batches(world.pipeline.name, 1))
    found = set()
    for partition, chain in history.chains.items():
        for segment in chain:
            for place in places({partition: segment.start}, {partition: segment.end}):
                left_out = place[1] in segment.row.excluded.get(partition, {})
                if window_end(*place) <= segment.late_ms and not left_out:
                    found.add(place)
    late = world.sink.late()
    if found != late:
        raise BrokenPromiseError(
            f"I7: late by the ledger alone {sorted(found - late)}, by the sink alone {sorted(late - found)}"
        )


def _side_rows_are_filed_once(world: World) -> None:
    """``late_rows`` has each late record of the batches in effect, once, and ``dead_letters`` each that was left
    out.
    """
    sides = {ControlTable.LATE_ROWS: world.sink.late(), ControlTable.DEAD_LETTERS: world.sink.dead()}
    for table, expected in sides.items():
        rows = filed_rows(world.tables.url(table), world.spark)
        found = Counter((partition, offset) for _, _, partition, offset in rows)
        wanted = Counter(expected)
        if found != wanted:
            more = sorted((found - wanted).elements())
            lacking = sorted((wanted - found).elements())
            raise BrokenPromiseError(f"I1: {table} lacks {lacking}, and has {more} too often")


def _bases_change_no_answer(world: World) -> None:
    """A history that begins with a base says what all batches say."""
    fenced = fenced_by(world.url, {}, world.pipeline.name, 1)
    bases = LedgerBases(world.tables)  # type: ignore[arg-type]
    histories = list(bases.snapshot(world.pipeline.name, 1, fenced).histories())
    whole = histories[-1]
    for history in histories[:-1]:
        for name in ("committed", "first", "last_read"):
            if getattr(history, name) != getattr(whole, name):
                raise BrokenPromiseError(
                    f"I7: {name} is {getattr(history, name)} by a base, {getattr(whole, name)} by all batches"
                )
