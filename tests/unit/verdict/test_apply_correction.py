"""Which runs change what readers get. No JVM: the run, its verdict and its answers are written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.counted import NOTHING_COUNTED

from hindcast import Table, Topic, Window, pipeline
from hindcast.installation import Installation
from hindcast.replay.batch import ANSWER, Answer, answers_url
from hindcast.replay.recorded_plan import RecordedPlan
from hindcast.replay.run_table import Runs
from hindcast.serving.corrected_windows import Corrections
from hindcast.settings import Settings
from hindcast.tables.run_states import RunKind, RunState
from hindcast.tables.table_names import ControlTable
from hindcast.verdict.apply_correction import correct

AT = datetime(2026, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("window", pa.struct([("start", INSTANT), ("end", INSTANT)])), ("n", pa.int64()), (ANSWER, pa.string())]
)


def same(frame: Any) -> Any:
    return frame


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("1 second"),
    sink=Table("stats", keys=["window"]),
    version=1,
)
def stats(frame: Any) -> Any:
    return frame


def judged(installation: Installation, run_id: str, late_judged_rows: int, end: int) -> None:
    """A run over the windows that end after 0 and by 3 s, with a verdict of which nothing is unexplained."""
    counted = replace(
        NOTHING_COUNTED,
        rows_read=9,
        input_rows=9,
        late_rows=late_judged_rows,
        judged_rows=9,
        late_judged_rows=late_judged_rows,
        output_rows=3,
    )
    plan = RecordedPlan(
        asked="",
        topic="trades",
        start={0: 0},
        end={0: end},
        read_from={0: 0},
        windows_after_ms=0,
        windows_to_ms=3_000,
        sink_version=1,
        counted=counted,
    )
    row = {
        "run_id": run_id,
        "pipeline": "stats",
        "version": 1,
        "kind": RunKind.REPLAY.value,
        "state": RunState.SUCCEEDED.value,
        "plan": plan.text(),
        "started_at": AT,
        "finished_at": AT,
    }
    Runs(installation.tables).append(row)
    verdict = {
        "run_id": run_id,
        "pipeline": "stats",
        "version": 1,
        "sink_version": 1,
        "unexplained": 0,
        "number": 1,
        "passed": True,
        "judged_at": AT,
    }
    installation.tables.append(ControlTable.VERDICTS, [verdict])
    rows = []
    for second in (1, 2, 3):
        window = {
            "start": datetime.fromtimestamp(second - 1, UTC),
            "end": datetime.fromtimestamp(second, UTC),
        }
        rows.append({"window": window, "n": end, ANSWER: Answer.HINDSIGHT.value})
    write_deltalake(
        answers_url(installation.settings, "stats", run_id), pa.Table.from_pylist(rows, schema=SCHEMA)
    )


def events(installation: Installation) -> int:
    return len(installation.tables.rows(ControlTable.EVENTS, [("kind", "=", "windows_corrected")]))


@pytest.mark.parametrize(
    ("late", "hindsight", "corrected"), [(0, None, False), (1, None, True), (0, same, True)]
)
def test_a_run_that_found_nothing_late_changes_nothing(
    settings: Settings, late: int, hindsight: Callable[..., Any] | None, corrected: bool
) -> None:
    """Readers have its answer already, by the stream or by an older correction. An answer in hindsight of its
    own differs all the same.
    """
    installation = Installation(settings)
    declared = replace(stats, hindsight=hindsight)
    corrections = Corrections(settings, declared)
    judged(installation, "run", late, 10)
    assert correct(installation, declared, "run")["corrected"] is corrected
    assert [one.run_id for one in corrections.current().ranges] == ["run"] * corrected
    assert events(installation) == int(corrected)


def test_an_older_correction_stays_as_long_as_nothing_comes_late(settings: Settings) -> None:
    """So what is corrected is not written again with every verdict."""
    installation = Installation(settings)
    corrections = Corrections(settings, stats)
    judged(installation, "first", 2, 10)
    judged(installation, "quiet", 0, 20)
    judged(installation, "last", 1, 30)
    assert correct(installation, stats, "first")["corrected"]
    before = corrections.current()
    assert not correct(installation, stats, "quiet")["corrected"]
    assert corrections.current() == before
    assert correct(installation, stats, "last")["corrected"]
    assert [one.run_id for one in corrections.current().ranges] == ["last"]
    assert events(installation) == 2
