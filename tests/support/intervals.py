"""A stream that is judged interval by interval, while its topic loses the beginning and its sink the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from support.live_stream import delete_records, ledger
from support.shard_harness import WAIT_SECONDS
from support.waiting import wait_until
from support.workload_harness import Value, Workload

from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.commit import until_it_lands
from hindcast.pipeline import TOPIC_STRIDE
from hindcast.replay.recorded_plan import Counted, RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.stream.shard_runner import ShardRunner
from hindcast.tables.compaction import compact
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.fenced_sink import sink_end

Done = TypeVar("Done")


@dataclass
class Intervals:
    """One owner reads interval after interval; each gets a verdict of its own."""

    made: Workload
    verdicts: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def owner(self) -> ShardRunner:
        return self.made.start()

    @property
    def sink(self) -> DeltaTable:
        return DeltaTable(self.made.settings.table("sinks", self.made.pipeline.sink.name))

    def stream(self, rows: Mapping[int, Iterable[Value]]) -> None:
        """Send rows to the topics of these numbers, and wait until they are committed and in the ledger."""
        for topic, values in rows.items():
            self.made.put(values, topic=topic)
        self.made.consume(self.owner)
        self.made.renew()
        self.wait_for_ledger()

    def wait_for_ledger(self) -> None:
        """Wait until the ledger has all batches of the sink. A verdict looks at the table as it was before the
        first one that the ledger lacks.
        """
        wait_until(self._flushed, WAIT_SECONDS, "the ledger has the last batch")

    def _flushed(self) -> bool:
        self.owner.flush()
        settings = self.made.settings
        pipeline = self.made.pipeline
        rows = ledger(settings, pipeline.name)
        end = sink_end(settings.sink(pipeline), settings.storage_options)
        if not rows or end is None:
            return False
        held = [fence.batch for app, fence in end.fences.items() if app.startswith(f"{pipeline.name}/")]
        return rows[-1].batch >= max(held)

    def judge(self, **asked: Any) -> dict[str, Any]:
        """The verdict on what was read since the last one, or on what is asked."""
        run_id = f"interval-{len(self.verdicts)}"
        self.verdicts.append(self.made.verdict(run_id, **(asked or {"since_last_verdict": True})))
        return self.verdicts[-1]

    def plan(self, verdict: Mapping[str, Any]) -> RecordedPlan:
        run = Runs(ControlTables(self.made.settings)).succeeded(verdict["run_id"])
        return RecordedPlan.from_text(run["plan"])

    def counted(self, verdict: Mapping[str, Any]) -> Counted:
        counted = self.plan(verdict).counted
        assert counted is not None
        return counted

    def lose_the_beginning(self) -> None:
        """The topics lose all that was read so far."""
        self._lose_before(self.made.reached())

    def lose_what_was_judged_before(self) -> None:
        """The topics lose all that the last verdict did not read."""
        self._lose_before(self.plan(self.verdicts[-1]).read_from)

    def _lose_before(self, ends: Mapping[int, int]) -> None:
        for index, topic in enumerate(self.made.pipeline.topics):
            first = index * TOPIC_STRIDE
            before = {
                place - first: end for place, end in ends.items() if first <= place < first + TOPIC_STRIDE
            }
            delete_records(self.made.servers, topic.name, before)

    def tidy(self) -> None:
        """Join the sink's small files, and cut its log to its newest version."""
        compact(self.sink, {})
        table = self.sink
        properties = {"delta.logRetentionDuration": "interval 0 seconds"}
        if not properties.items() <= table.metadata().configuration.items():
            table.alter.set_table_properties(properties)
        table = self.sink
        table.create_checkpoint()
        table.cleanup_metadata()

    def delete(self, predicate: str) -> None:
        """A person deletes rows of the sink."""
        self.sink.delete(predicate)

    def double(self, row: pc.Expression) -> None:
        """A person appends rows of the sink to it once more."""
        rows = arrow_dataset(self.sink).to_table().filter(row)
        write_deltalake(self.sink, rows, mode="append")

    def change(self, updates: Mapping[str, str], predicate: str) -> None:
        """A person changes rows of the sink."""
        self.by_hand(lambda sink: sink.update(updates=dict(updates), predicate=predicate))

    def by_hand(self, commit: Callable[[DeltaTable], Done]) -> Done:
        """A person commits to the sink, and tries again if the stream was faster."""
        return until_it_lands(self.sink.table_uri, lambda: commit(self.sink))

    def kinds(self, verdict: Mapping[str, Any]) -> dict[str, int]:
        """The unexplained differences by kind, those that there are."""
        kinds = ("missing", "extra", "changed", "doubled")
        return {kind: verdict[kind] for kind in kinds if verdict[kind]}
