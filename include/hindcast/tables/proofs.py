"""The proofs of a pipeline without windows: what state it should have at the end of a judged range.

Its results depend on all that came before. A proof is the state of a re-execution at the end of a range, so
the next range is judged from there: at its own price, and after the topic has lost what came before. Each
proof goes on from the one before it, and the first from the stream's beginning. So a proof stands for all
records from ``first`` to ``end``.

The rows of a version are replaced together, so there are never more than are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hindcast.delta.arrow_dataset import Condition
from hindcast.partitions import Offsets, offsets_from_json, offsets_to_json
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.ledger import Undone
from hindcast.tables.table_names import ControlTable

#: Where the states are, by pipeline and run.
FOLDER = "proofs"
#: So many of the newest proofs of a version are kept: runs that wait for their verdict begin with them.
KEPT_NEWEST = 6
#: Of older ones the last of each day is kept for so long: a rewind goes back so far at most. Each proof is a
#: copy of the state, so there are not many.
KEPT_DAYS = 7


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The state at the end of the range of one run.

    :param first: the stream's first offsets, from which the chain of proofs begins
    :param start: where the run's range begins; the proof before this one ends there
    :param end: where it ends
    :param sink_version: the version of the sink that holds the batches below ``end`` and no others
    :param based_on: the run of the proof before; empty if the range begins with the stream
    :param batches: Spark's number of the last batch in the checkpoint of each shard
    :param url: the folder with a checkpoint for each shard
    """

    run_id: str
    pipeline: str
    version: int
    first: Offsets
    start: Offsets
    end: Offsets
    sink_version: int
    based_on: str
    batches: Mapping[str, int]
    url: str
    made_at: datetime

    def as_row(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "pipeline": self.pipeline,
            "version": self.version,
            "first_offsets": offsets_to_json(self.first),
            "start_offsets": offsets_to_json(self.start),
            "end_offsets": offsets_to_json(self.end),
            "sink_version": self.sink_version,
            "based_on": self.based_on,
            "batches": json.dumps(dict(self.batches), sort_keys=True),
            "url": self.url,
            "made_at": self.made_at,
        }

    def shown(self) -> dict[str, Any]:
        """What a listing shows of it."""
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "run_id": self.run_id,
            "start": self.start,
            "end": self.end,
            "sink_version": self.sink_version,
            "based_on": self.based_on,
            "made_at": self.made_at,
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Proof:
        return cls(
            run_id=row["run_id"],
            pipeline=row["pipeline"],
            version=row["version"],
            first=offsets_from_json(row["first_offsets"]),
            start=offsets_from_json(row["start_offsets"]),
            end=offsets_from_json(row["end_offsets"]),
            sink_version=row["sink_version"],
            based_on=row["based_on"],
            batches=json.loads(row["batches"]),
            url=row["url"],
            made_at=row["made_at"],
        )


@dataclass(frozen=True)
class Proofs:
    """Reads and writes the proofs."""

    tables: ControlTables

    def add(self, proof: Proof) -> list[Proof]:
        """Keep a proof, once its files are written, in place of one that the same run left before. Those of
        its version that are too many or too old are forgotten.

        :returns: the forgotten ones, whose files nothing needs any more
        :raises StoreUnavailableError: if it could not be written
        """
        forgotten: list[Proof] = []

        def with_proof(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            known = [Proof.of_row(row) for row in rows]
            others = [other for other in known if other.run_id != proof.run_id]
            kept = _kept([*others, proof], proof.made_at)
            forgotten[:] = [one for one in known if one not in kept]
            return [one.as_row() for one in kept]

        of_version: dict[str, str | int] = {"pipeline": proof.pipeline, "version": proof.version}
        self.tables.replace(ControlTable.PROOFS, of_version, with_proof)
        return forgotten

    def of_version(self, pipeline: str, version: int, undone: Sequence[Undone] = ()) -> list[Proof]:
        """The proofs of a version in the order of the sink's versions, without those of what a rewind took
        back.
        """
        of_version: list[Condition] = [("pipeline", "=", pipeline), ("version", "=", version)]
        found = []
        for row in self.tables.rows(ControlTable.PROOFS, of_version):
            proof = Proof.of_row(row)
            if not any(reset.has(proof.sink_version) for reset in undone):
                found.append(proof)
        return sorted(found, key=lambda proof: proof.sink_version)

    def read(self, pipeline: str = "") -> list[Proof]:
        """The proofs of all versions, or of one pipeline's, in the order of the sinks' versions."""
        where: list[Condition] = []
        if pipeline:
            where.append(("pipeline", "=", pipeline))
        found = [Proof.of_row(row) for row in self.tables.rows(ControlTable.PROOFS, where)]
        return sorted(found, key=lambda proof: (proof.pipeline, proof.version, proof.sink_version))

    def of_run(self, run_id: str) -> Proof | None:
        """The proof that a run left; None if it left none, or if it was forgotten."""
        rows = self.tables.rows(ControlTable.PROOFS, [("run_id", "=", run_id)])
        if not rows:
            return None
        return Proof.of_row(rows[0])

    def urls(self) -> set[str]:
        """The folders of all proofs."""
        found = self.tables.read(ControlTable.PROOFS, columns=["url"])
        return set(found["url"].to_pylist())


def _kept(proofs: Iterable[Proof], now: datetime) -> list[Proof]:
    """The newest proofs, and the last one of each of the days before."""
    in_order = sorted(proofs, key=lambda proof: proof.sink_version)
    oldest = now - timedelta(days=KEPT_DAYS)
    last_of_day = {proof.made_at.date(): proof for proof in in_order if proof.made_at >= oldest}
    newest = in_order[-KEPT_NEWEST:]
    return [proof for proof in in_order if proof in newest or proof in last_of_day.values()]


def proof_before(proofs: Iterable[Proof], start: Offsets, begun: Offsets) -> Proof | None:
    """The proof nearest to ``start`` of those that end there or before; None if there is none.

    :param begun: the stream's first offsets. A proof that does not go back to them is of another stream.
    """
    found = []
    for proof in proofs:
        same_stream = all(begun.get(partition) == offset for partition, offset in proof.first.items())
        end = {**begun, **proof.end}
        before = all(end[partition] <= offset for partition, offset in start.items())
        if same_stream and before:
            found.append(proof)
    return max(found, key=lambda proof: proof.sink_version, default=None)
