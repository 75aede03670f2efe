"""A stream that has run, as plain Python simulated it: replayed and judged on a real topic, real tables and a
real Spark session.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.simulated_stream import Simulated

from hindcast.installation import Installation
from hindcast.pipeline import Pipeline
from hindcast.replay.request import ReplayRequest
from hindcast.replay.run_replay import run_replay
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.judge import judge

LIST = "stock_stats"
#: The run that every scene has: a replay of all that the stream read.
ONCE = "once"


@dataclass(frozen=True)
class ReplayedStream:
    """A stream that has run: its pipeline, its settings, and what the simulation says of it."""

    spark: SparkSession
    settings: Settings
    pipeline: Pipeline
    stream: Simulated

    @property
    def installation(self) -> Installation:
        return Installation(self.settings)

    @property
    def sink(self) -> str:
        return self.settings.table("sinks", self.pipeline.sink.name)

    def replay(self, run_id: str, **asked: Any) -> dict[str, Any]:
        request = ReplayRequest(pipeline=self.pipeline.name, run_id=run_id, **(asked or {"everything": True}))
        return run_replay(lambda: self.spark, self.installation, self.pipeline, request).as_dict()

    def judge(self, run_id: str = ONCE, **asked: Any) -> dict[str, Any]:
        """The verdict on a new replay; without ``asked`` on the scene's own, against the sink and the
        accounts as they are now.
        """
        if asked:
            self.replay(run_id, **asked)
        else:
            row = Runs(ControlTables(self.settings)).succeeded(run_id)
            plan = {**json.loads(row["plan"]), "sink_version": DeltaTable(self.sink).version()}
            Runs(ControlTables(self.settings)).append(
                {**row, "plan": json.dumps(plan), "finished_at": datetime.now(UTC)}
            )
        return judge(lambda: self.spark, self.installation, self.pipeline, run_id)

    def differences(self, run_id: str, cause: str = "unexplained") -> list[dict[str, Any]]:
        return ControlTables(self.settings).rows(
            ControlTable.DIFFERENCES, [("run_id", "=", run_id), ("cause", "=", cause)]
        )

    def judged(self, verdict: dict[str, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """(online, hindsight): the answers by the simulation's own rule, over the windows that the verdict
        judged.
        """
        bounds = (verdict["windows_after_ms"], verdict["windows_to_ms"])
        return self.stream.answers(self.stream.records, *bounds, online=True), self.stream.answers(
            self.stream.records, *bounds, online=False
        )
