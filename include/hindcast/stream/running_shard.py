"""A shard that a worker has started, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass

from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets
from hindcast.stream.late_and_dead_rows import Audit
from hindcast.stream.shard_runner import ShardRunner


@dataclass
class RunningShard:
    """A shard that is held and whose query was started.

    The worker's main thread changes all fields but ``filed``. The passes of the audit change ``filed``, and
    read the runner and ``ending``.
    """

    runner: ShardRunner
    audit: Audit
    shadow: bool = False  # of a version that readers do not have: its batches are bounded
    filed: int | None = None  # the last batch whose late and poison rows are filed, if it is known
    rebuilt: str = ""  # the newest request to rebuild when it was started
    met: str | None = None  # a request to rebuild, or "" for damage, that its first batch will have met
    draining: bool = False
    ending: bool = False  # superseded, with nothing in hand
    restart: tuple[Lease, str] | None = None  # once drained, start it again for this request to rebuild
    drain_to: Offsets | None = None

    def drain(self, restart: tuple[Lease, str] | None = None) -> None:
        """Let the batch in hand end and begin no other.

        :param restart: the lease and the request to rebuild with which the shard is then started again
        """
        self.restart = restart
        self.draining = True
        self.runner.drain()

    @property
    def stands_still(self) -> bool:
        """Whether it waits for the first batch of its new owner."""
        return not (self.runner.progressed or self.draining)

    @property
    def reached_drain_end(self) -> bool:
        """Whether it has consumed up to where it is to drain."""
        if self.drain_to is None:
            return False
        ends = self.runner.end_offsets
        return all(ends[partition] >= end for partition, end in self.drain_to.items())
