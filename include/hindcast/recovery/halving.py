"""Find the records of a batch on which a function raises: divide the batch again and again. Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hindcast.partitions import Offsets

#: A record: its partition and its offset.
Place = tuple[int, int]
#: A block is halved so many times before its parts are tried.
_HALVINGS = 3


class TooManyError(Exception):
    """More records raise than were allowed for."""


class Block:
    """The records of [start, end) of each partition."""

    def __init__(self, start: Offsets, end: Offsets) -> None:
        """Partitions without records are left out."""
        self.start: Offsets = {}
        self.end: Offsets = {}
        for partition, stop in end.items():
            if stop > start[partition]:
                self.start[partition] = start[partition]
                self.end[partition] = stop

    @property
    def offsets(self) -> int:
        """How many offsets it has. Some may have no record: Kafka deletes records by key, and marks
        transactions.
        """
        return sum(stop - self.start[partition] for partition, stop in self.end.items())

    @property
    def place(self) -> Place:
        """The place of a block of one offset."""
        ((partition, offset),) = self.start.items()
        return partition, offset

    def parts(self) -> list[Block]:
        """At most eight blocks that have its records between them, in order."""
        parts = [self]
        for _ in range(_HALVINGS):
            halves: list[Block] = []
            for part in parts:
                halves += part.halves()
            parts = halves
        return parts

    def halves(self) -> list[Block]:
        """Two blocks that have its records between them; of one offset the block itself."""
        if self.offsets <= 1:
            return [self]
        partitions = sorted(self.start)
        if len(partitions) == 1:
            (partition,) = partitions
            middle = {partition: (self.start[partition] + self.end[partition]) // 2}
            return [Block(self.start, middle), Block(middle, self.end)]
        middle_partition = len(partitions) // 2
        return [self._of(partitions[:middle_partition]), self._of(partitions[middle_partition:])]

    def _of(self, partitions: list[int]) -> Block:
        start = {partition: self.start[partition] for partition in partitions}
        end = {partition: self.end[partition] for partition in partitions}
        return Block(start, end)


#: Tries blocks one after the other, without the records at some places. The number of the first that raises;
#: None if none does.
FirstRaising = Callable[[Sequence[Block], Collection[Place]], int | None]


def find_raising(block: Block, first_raising: FirstRaising, most: int) -> list[Place]:
    """The records of a block that seem to raise by themselves, in order.

    One after the other is found, and left out of the tries that follow, until the rest of the block passes.
    The neighbours of one that was found are tried next: if a function raises on all records, each of them
    takes one try. If it raises only if certain records come together, the rest may still raise, or what is
    found does not raise by itself: the caller must try both.

    :param block: one that raises
    :raises TooManyError: if more than ``most`` are found
    """
    found: list[Place] = []
    while True:
        records, number = _first_record(block, first_raising, found)
        if number is None:
            break
        while number is not None and records[number].offsets == 1:
            found.append(records[number].place)
            if len(found) > most:
                raise TooManyError
            records = records[number + 1 :]
            number = first_raising(records, found) if records else None
        if first_raising([block], found) is None:
            break
    return sorted(found)


def _first_record(
    block: Block, first_raising: FirstRaising, without: Collection[Place]
) -> tuple[Sequence[Block], int | None]:
    """Parts of a block, and the number of the first that raises, which has one offset; None if a part raises
    only as a whole.
    """
    parts: Sequence[Block] = [block]
    number: int | None = 0
    while number is not None and parts[number].offsets > 1:
        parts = parts[number].parts()
        number = first_raising(parts, without)
    return parts, number
