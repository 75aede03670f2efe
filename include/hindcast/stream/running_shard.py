"""A shard that a worker has started, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hindcast.leases.lease import Lease
from hindcast.partitions import Offsets, as_json_object
from hindcast.recovery.raising_records import LeftOut, RaisingRecords
from hindcast.shards.shard_row import ReportedDetail
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
    filed: int | None = None  # the last batch whose late and poison rows are filed, if it is known
    rebuilt: str = ""  # the newest request to rebuild when it was started
    met: str | None = None  # a request to rebuild, or "" for damage, that its first batch will have met
    met_is_reported: bool = False
    draining: bool = False
    ending: bool = False  # superseded, with nothing in hand
    restart: tuple[Lease, str] | None = None  # once drained, start it again for this request to rebuild
    drain_to: Offsets | None = None
    left_out: LeftOut = field(default_factory=LeftOut)  # records on which the function raises
    search: RaisingRecords | None = None  # its query has failed, and the records that raise are searched for

    def drain(self, restart: tuple[Lease, str] | None = None) -> None:
        """Let the batch in hand end and begin no other.

        :param restart: the lease and the request to rebuild with which the shard is then started again
        """
        self.restart = restart
        self.draining = True
        self.runner.drain()

    @property
    def lease(self) -> Lease:
        """Its lease as it is by now: with the offsets up to which the shard is read, and the request to
        rebuild that it has met. The runner's own is of its start.
        """
        lease = self.runner.lease
        ends = self.runner.end_offsets
        if ends:
            lease = replace(lease, checkpoint={**lease.checkpoint, "end_offsets": as_json_object(ends)})
        if self.met is not None and self.runner.progressed:
            lease = replace(lease, detail={**lease.detail, **ReportedDetail(rebuild=self.met, damaged="")})
        return lease

    @property
    def stands_still(self) -> bool:
        """Whether it waits for the first batch of its new owner."""
        return not (self.runner.progressed or self.draining or self.search)

    @property
    def reached_drain_end(self) -> bool:
        """Whether it has consumed up to where it is to drain."""
        if self.drain_to is None:
            return False
        ends = self.runner.end_offsets
        return all(ends[partition] >= end for partition, end in self.drain_to.items())
