"""Find the records of a batch on which a function raises, by halving the batch. Pure Python."""

from __future__ import annotations

from collections.abc import Callable

from hindcast.partitions import Offsets

#: A record: its partition and its offset.
Place = tuple[int, int]


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

    def halves(self) -> tuple[Block, Block]:
        """Two blocks that have its records between them. A block of one offset has no halves."""
        partitions = sorted(self.start)
        if len(partitions) == 1:
            (partition,) = partitions
            middle = {partition: (self.start[partition] + self.end[partition]) // 2}
            return Block(self.start, middle), Block(middle, self.end)
        middle_partition = len(partitions) // 2
        return self._of(partitions[:middle_partition]), self._of(partitions[middle_partition:])

    def _of(self, partitions: list[int]) -> Block:
        start = {partition: self.start[partition] for partition in partitions}
        end = {partition: self.end[partition] for partition in partitions}
        return Block(start, end)


def find_raising(block: Block, raises: Callable[[Block], bool], most: int) -> list[Place]:
    """The records of a block that seem to raise by themselves, in order.

    A block that raises is halved. If its first half does not raise, the second must, unless the function
    raises only if certain records come together. Then what is found does not raise alone: try each.

    :param block: one that raises
    :param raises: tries a part of it
    :raises TooManyError: if more than ``most`` are found
    """
    found: list[Place] = []
    # Parts that are still to be looked at, the first one last, and whether they are known to raise.
    waiting = [(block, True)]
    while waiting:
        part, known = waiting.pop()
        if not part.offsets or not (known or raises(part)):
            continue
        if part.offsets == 1:
            found.append(part.place)
            if len(found) > most:
                raise TooManyError
            continue
        first, second = part.halves()
        if raises(first):
            waiting += [(second, False), (first, True)]
        else:
            waiting.append((second, True))
    return found
