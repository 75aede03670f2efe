"""Every oracle, after a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support import fault_oracles
from support.evidence import Evidence, collect
from support.fleet import HEALED_SECONDS, LEASE_SECONDS
from support.warm_fleet import WarmStream


@dataclass
class CheckAllOracles:
    """Lets a stream heal, pauses it, and holds its tables against the oracles; the names of those go to
    ``record``.
    """

    record: Callable[[str, object], None]

    def __call__(
        self,
        stream: WarmStream,
        *kinds: str,
        live: bool = True,
        healing_seconds: float = HEALED_SECONDS,
        sends: bool = True,
        to: Mapping[int, int] | None = None,
    ) -> Evidence:
        """Assert that nothing is lost, doubled, or untold.

        :param kinds: events that must be there
        :param live: some worker was alive throughout, so no shard may have been without one for long
        :param sends: whether more records are sent first, to see that they are read
        :param to: where the topic ends, if not after the last record sent
        """
        if sends:
            stream.send_more(100)
        stream.wait_read(LEASE_SECONDS + healing_seconds, to)
        stream.pause()
        evidence = collect(stream.settings, stream.name, stream.began_at, stream.fleet.history)
        poison = [record.place for record in stream.sent if record.event_ms is None]
        fault_oracles.set_aside(evidence, [record.place for record in stream.sent], poison)
        fault_oracles.written_once(evidence, upserts=stream.shape.upserts)
        fault_oracles.one_owner(evidence)
        fault_oracles.never_back(evidence)
        fault_oracles.ledger_is_the_sinks(evidence)
        stream.check()
        if live:
            fault_oracles.alive(evidence, LEASE_SECONDS)
        fault_oracles.told(evidence, "shard_taken", *kinds)
        self.record("oracles", "I1 I2 I3 I4 I5 " + ("I6 I7" if live else "I7"))
        return evidence
