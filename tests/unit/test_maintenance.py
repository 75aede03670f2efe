"""What `maintain` deletes, and what it leaves whatever its age."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hindcast.control.maintenance import HINDCAST_DAYS, maintain
from hindcast.control.schema import ControlTable
from hindcast.control.tables import ControlTables
from hindcast.settings import Settings

NOW = datetime.now(UTC)


def run(settings: Settings, run_id: str, *, days: float, **fields: Any) -> None:
    """A run that ended so many days ago, and the folders of its answer."""
    at = NOW - timedelta(days=days)
    row = {"pipeline": "p", "version": 1, "kind": "benchmark", "state": "succeeded", "versions": "{}", **fields}
    ControlTables(settings).append(ControlTable.RUNS, [{"run_id": run_id, "started_at": at, "finished_at": at, **row}])
    for root in ("hindcasts", "hindcast_rows"):
        folder = Path(settings.table(root)) / row["pipeline"] / run_id
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - days * 86_400,) * 2)


def left(settings: Settings, root: str = "hindcasts") -> set[str]:
    return {folder.name for folder in Path(settings.table(root)).glob("*/*")}


@pytest.fixture
def settings(settings_factory: Any, tmp_path: Path) -> Settings:
    """Settings without a pipeline: there are no sinks to maintain."""
    (tmp_path / "none").mkdir()
    made: Settings = settings_factory(pipelines_dir=tmp_path / "none")
    return made


def test_the_newest_benchmark_of_each_version_stays_whatever_its_age(settings: Settings) -> None:
    """The benchmarks are weekly and hindcasts are kept for a week: without it nothing would be left to compare with."""
    old = HINDCAST_DAYS + 1
    for kind in ("benchmark", "re-execution"):
        run(settings, f"{kind}-first", days=10 * old, kind=kind)
        run(settings, f"{kind}-newest", days=old, kind=kind)
        run(settings, f"{kind}-failed", days=old, kind=kind, state="failed")
        run(settings, f"{kind}-version-2", days=40 * old, kind=kind, version=2)
        run(settings, f"{kind}-other-spark", days=60 * old, kind=kind, versions='{"pyspark": "3"}')
        run(settings, f"{kind}-other-pipeline", days=60 * old, kind=kind, pipeline="q")
        run(settings, f"{kind}-recent", days=old - 2, kind=kind, version=3)
        run(settings, f"{kind}-before-recent", days=old, kind=kind, version=3)
    run(settings, "replay", days=old, kind="replay")
    run(settings, "replay-recent", days=1, kind="replay")
    maintain(settings)
    kept = {
        f"{kind}-{name}"
        for kind in ("benchmark", "re-execution")
        for name in ("newest", "version-2", "other-spark", "other-pipeline", "recent")
    }
    assert left(settings) == left(settings, "hindcast_rows") == {*kept, "replay-recent"}


def test_a_folder_of_another_pipeline_with_the_same_run_id_is_not_kept(settings: Settings) -> None:
    """A run is named by its pipeline and its id."""
    old = HINDCAST_DAYS + 1
    run(settings, "same", days=old)
    run(settings, "same", days=old, pipeline="q", kind="replay")
    maintain(settings)
    assert [str(folder.relative_to(settings.table("hindcasts"))) for folder in Path(settings.table("hindcasts")).glob("*/*")] == ["p/same"]
