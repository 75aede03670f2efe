"""The commands for streams that others run: what they print, and when they go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast.app import InstalledPipeline
from hindcast.cli import output
from hindcast.cli.main import run
from hindcast.errors import StoreUnavailableError
from hindcast.foreign.record import Recorded
from hindcast.settings import Settings

QUERY = "8a6a0dd4-4bd7-4b9e-a3f1-0c9b8f0f9d11"
_MODULE = """
from hindcast import Table, Topic, pipeline, verified

@verified(
    table="{lake}/theirs", checkpoint="{lake}/checkpoint", source=Topic("t", schema="ts timestamp"),
    event_time="ts", watermark="10 seconds",
)
def theirs(rows):
    return rows

@pipeline(
    sink=Table("ours", url="{lake}/table"), source=Topic("t", schema="ts timestamp"),
    event_time="ts", watermark="10 seconds", version=1,
)
def ours(rows):
    return rows
"""


@pytest.fixture
def lake(settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stream to be judged and one to be taken over, whose table has batch 4 of its query."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    lake = tmp_path / "lake"
    (folder / "both.py").write_text(_MODULE.format(lake=lake))
    settings = settings_factory(pipelines_dir=folder)
    monkeypatch.setenv("HINDCAST_HOME", str(settings.home))
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
    properties = CommitProperties(app_transactions=[Transaction(QUERY, 4)])
    write_deltalake(str(lake / "table"), pa.table({"n": [1]}), commit_properties=properties)
    (lake / "checkpoint").mkdir()
    (lake / "checkpoint" / "metadata").write_text(json.dumps({"id": QUERY}))
    return lake


def test_a_query_without_a_batch_is_said_so(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is no error: it may just have begun."""
    assert run(["record", "theirs", "-o", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert "has finished no batch yet" in said.err


def test_a_recorder_outlives_a_store_that_is_away(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left running for weeks. Without --watch the error ends it."""
    away = StoreUnavailableError(table="the table", action="read", reason="away")
    answers = [away, away, Recorded(0, None)]

    def record(_: InstalledPipeline) -> Recorded:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(_: float) -> None:
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(InstalledPipeline, "record", record)
    monkeypatch.setattr(output, "sleep", sleep)
    assert run(["record", "theirs"]) == away.exit_code
    assert run(["record", "theirs", "--watch", "--every", "7"]) == 0
    said = capsys.readouterr().err
    assert "It is tried again in 7 s." in said
    assert "has finished no batch yet" in said


def test_a_dry_run_says_which_query_it_would_be(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And changes nothing."""
    adopt = ["adopt", "ours", "--checkpoint", str(lake / "checkpoint")]
    assert run([*adopt, "--dry-run", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"pipeline": "ours", "query": QUERY, "last_batch": 4, "dry_run": True}
    assert run(adopt) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["adopt", "theirs", "--checkpoint", str(lake / "checkpoint"), "--dry-run"]) == 2
    assert "Declare it with @pipeline" in capsys.readouterr().err
    assert DeltaTable(str(lake / "table")).version() == 0
