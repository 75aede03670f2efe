"""The DAG files, loaded as Airflow's DAG processor loads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from hindcast.airflow import generate_dags
from hindcast.settings import project_root

pytestmark = pytest.mark.filterwarnings("ignore")

FILES = sorted((project_root() / "dags").glob("*.py"))
PIPELINES_FILE = project_root() / "dags" / "pipelines.py"
PIPELINES = (
    "bin_packing",
    "click_enrichment",
    "rent_or_buy",
    "retries",
    "sentences",
    "stock_stats",
    "web_log",
    "word_count",
)
ALL = sorted(
    [
        "maintain",
        "supervise",
        *(f"{job}.{pipeline}" for job in ("replay", "reprocess", "validate") for pipeline in PIPELINES),
    ]
)


@pytest.fixture(scope="module")
def loaded() -> tuple[dict[str, DAG], dict[str, float]]:
    """All DAGs by id, and the seconds that each file took."""
    dags: dict[str, DAG] = {}
    seconds = {}
    for file in FILES:
        began = time.perf_counter()
        bag = DagBag(dag_folder=file)
        seconds[file.name] = time.perf_counter() - began
        assert bag.import_errors == {}
        dags |= bag.dags
    return dags, seconds


@pytest.fixture(scope="module")
def dags(loaded: tuple[dict[str, DAG], dict[str, float]]) -> dict[str, DAG]:
    return loaded[0]


def test_every_job_has_its_dags(loaded: tuple[dict[str, DAG], dict[str, float]]) -> None:
    """One supervise and one maintain; a replay, a reprocess and a validate for each pipeline."""
    dags, seconds = loaded
    assert sorted(dags) == ALL
    print({name: round(value, 3) for name, value in seconds.items()})  # noqa: T201 - measured, not asserted


def after_parsing(code: str, **variables: str) -> str:
    """What code prints in a process of its own that has parsed all DAG files: their names are ``found``."""
    parsing = (
        "import sys, runpy, pathlib\n"
        "found = [runpy.run_path(str(file)) for file in pathlib.Path(sys.argv[1]).glob('*.py')]\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", parsing + code, str(project_root() / "dags")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_parsing_loads_neither_great_expectations_nor_a_jvm() -> None:
    """A DAG file is parsed every few seconds, in a process of its own."""
    printed = after_parsing(
        "print(sorted(loaded & {'great_expectations', 'kafka', 'fastapi_cli'}))\n"
        "from pyspark import SparkContext\n"
        "print(SparkContext._gateway)\n"
    )
    assert printed.splitlines()[-2:] == ["[]", "None"]


PLAIN = """
from hindcast import Table, Topic, pipeline


@pipeline(
    source=Topic("t", schema="a string, ts timestamp", key="a", archive=True),
    event_time="ts", watermark="1 second", sink=Table("x"), version=1,
)
def plain(rows):
    return rows
"""


def test_parsing_imports_nothing_that_reads_tables(tmp_path: Path) -> None:
    """A DAG file is parsed every minute. What a pipeline's own file imports is its own, so this one imports
    nothing; Hindcast's DAGs need no library of tables or frames.
    """
    (tmp_path / "plain.py").write_text(PLAIN)
    printed = after_parsing(
        "print(sum('archive' in names for names in found))\n"
        "print(sorted(loaded & {'pyspark', 'pandas', 'pyarrow', 'deltalake', 'kafka'}))\n",
        HINDCAST_PIPELINES_DIR=str(tmp_path),
    )
    count, heavy = printed.splitlines()[-2:]
    assert int(count) > 0
    assert heavy == "[]"


@pytest.mark.parametrize(
    "dag_id", ["maintain", "replay.stock_stats", "reprocess.stock_stats", "supervise", "validate.stock_stats"]
)
def test_a_dag_survives_its_way_into_the_database(dags: dict[str, DAG], dag_id: str) -> None:
    """The scheduler and the triggerer only ever see the serialized form."""
    serialized = DagSerialization.to_dict(dags[dag_id])
    assert DagSerialization.from_dict(serialized).dag_id == dag_id


def test_supervise_runs_again_and_again_but_never_twice_at_once(dags: dict[str, DAG]) -> None:
    """Two reconciliations at once would launch twice as many workers."""
    dag = dags["supervise"]
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert dag.max_active_runs == 1
    assert dag.get_task("watch").upstream_task_ids == {"reconcile"}


def test_replay_has_data_intervals_and_catches_nothing_up(dags: dict[str, DAG]) -> None:
    """Airflow's default timetable of a cron text has empty intervals: a run would cover nothing."""
    dag = dags["replay.stock_stats"]
    assert type(dag.timetable).__name__ == "SpreadCronTimetable"
    assert dag.catchup is False
    assert dag.max_active_runs == 16, "runs that wait for their stream leave room for a person's"
    task = dag.get_task("hindcast")
    assert task.max_active_tis_per_dag == 1
    assert task.retries > 0
    assert [asset.name for asset in task.outlets] == ["hindcasts.stock_stats"]


STARTS_SPARK = {
    "replay.stock_stats": {"hindcast"},
    "validate.stock_stats": {"judge"},
    "reprocess.stock_stats": {"start", "judge", "compare"},
    "supervise": set(),
    "maintain": set(),
}


@pytest.mark.parametrize("dag_id", STARTS_SPARK)
def test_a_task_that_starts_a_driver_takes_a_slot_of_the_drivers_pool(
    dags: dict[str, DAG], dag_id: str
) -> None:
    """What needs no Spark waits for nobody's replay; the watch of a promotion neither, as it may have to back
    out.
    """
    tasks = DagSerialization.from_dict(DagSerialization.to_dict(dags[dag_id])).tasks
    assert {task.task_id for task in tasks if task.pool == "hindcast_spark"} == STARTS_SPARK[dag_id]
    assert {
        task.task_id for task in tasks if type(task.weight_rule).__name__ == "AskedFirst"
    } == STARTS_SPARK[dag_id]


def test_a_pipeline_that_corrects_has_a_dag_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It replays the windows of late rows; `validate` is triggered by its asset and corrects."""
    source = (project_root() / "include" / "pipelines" / "stock_stats.py").read_text()
    (tmp_path / "stock_stats.py").write_text(source.replace("version=1,", 'version=1, policy="correct",'))
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path))
    bag = DagBag(dag_folder=PIPELINES_FILE)
    assert sorted(bag.dags) == [
        f"{job}.stock_stats" for job in ("correct", "replay", "reprocess", "validate")
    ]
    task = bag.dags["correct.stock_stats"].get_task("hindcast")
    assert task.choice == "late rows that no correction has"
    assert [asset.name for asset in task.outlets] == ["hindcasts.stock_stats"]


@pytest.mark.parametrize("dag_id", ["replay.retries", "validate.retries", "reprocess.retries", "nobody"])
def test_the_process_of_a_task_makes_its_dag_alone(monkeypatch: pytest.MonkeyPatch, dag_id: str) -> None:
    """Airflow parses the file again for each task, and says which DAG it is for."""
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "any")
    found: dict[str, Any] = {}
    generate_dags(found)
    made = {str(dag.dag_id) for dag in found.values()}
    assert made - {"supervise", "maintain"} == {dag_id} - {"nobody"}


@pytest.mark.parametrize("wanted", ["", "team-a.replay.retries"])
def test_the_ids_of_all_dags_begin_with_the_prefix(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """An Airflow may have a DAG `maintain` of its own."""
    monkeypatch.setenv("HINDCAST_DAG_PREFIX", "team-a.")
    expected = {f"team-a.{dag_id}" for dag_id in ALL}
    if wanted:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
        expected = {wanted, "team-a.supervise", "team-a.maintain"}
    found: dict[str, Any] = {}
    generate_dags(found)
    made = {str(dag.dag_id): dag for dag in found.values()}
    assert made.keys() == expected
    assert "`team-a.validate.retries` judges it" in made["team-a.replay.retries"].doc_md


def test_validate_waits_for_the_replays_asset_and_judges_one_run_a_task(dags: dict[str, DAG]) -> None:
    """Each verdict is a mapped task of its own."""
    dag = dags["validate.stock_stats"]
    outlet = dags["replay.stock_stats"].get_task("hindcast").outlets[0]
    assert [asset.uri for asset in dag.timetable.asset_condition.objects] == [outlet.uri]
    assert dag.get_task("judge").is_mapped


def test_reprocess_asks_a_person_before_it_promotes(dags: dict[str, DAG]) -> None:
    """Started by hand alone, one run at a time; a promotion comes after the answer, and is watched."""
    dag = dags["reprocess.stock_stats"]
    assert (type(dag.timetable).__name__, dag.max_active_runs, dag.catchup) == ("NullTimetable", 1, False)
    after = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert after == {
        "start": set(),
        "caught_up": {"start"},
        "judge": {"caught_up"},
        "compare": {"judge"},
        "approve": {"compare", "judge"},
        "promote": {"approve", "caught_up"},
        "discard": {"approve"},
        "watch": {"promote"},
    }
    assert all(task.trigger_rule == "all_success" for task in dag.tasks)
    assert all(task.retries > 0 for task in dag.tasks), "a task that died with Airflow is tried again"
    approve = dag.get_task("approve")
    assert approve.options_mapping == {"Promote": "promote", "Discard": "discard"}
    assert list(approve.params) == ["despite"]
    assert dag.get_task("promote").approval.key == "answer", "a branching task returns nothing"


def test_reprocess_proposes_the_newest_version(dags: dict[str, DAG]) -> None:
    """And a watch that ends while the old version is still warm."""
    params = dags["reprocess.stock_stats"].params
    assert (params["version"], params["from"], params["watch_minutes"], params["approval_hours"]) == (
        2,
        "earliest",
        30.0,
        24.0,
    )
    assert dags["reprocess.word_count"].params["version"] == 1


@pytest.mark.parametrize(
    "values",
    [
        *({}, {"version": 3, "new_table": True, "approval_hours": 0.5, "watch_minutes": 60}),
        *(
            {"from": "offsets", "from_offsets": {"0": 5}},
            {"from": "a time", "from_time": "2026-01-01T00:00:00+00:00"},
        ),
    ],
)
def test_the_form_takes_a_reprocessing(dags: dict[str, DAG], values: dict[str, Any]) -> None:
    """Whether such a version is declared is seen when it is begun: the file may be newer than the form."""
    filled(dags["reprocess.stock_stats"], values)


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"version": 0},
            {"version": "2; id"},
            {"from": "latest"},
            {"from_offsets": {"0": -1}},
            {"new_table": "yes"},
        ),
        *({"approval_hours": 0}, {"approval_hours": 1000}, {"watch_minutes": -1}, {"watch_minutes": 61}),
    ],
)
def test_the_form_refuses_what_is_no_reprocessing(dags: dict[str, DAG], values: dict[str, Any]) -> None:
    """Before any task is started. A watch longer than the old version is warm could not return to it."""
    with pytest.raises(ParamValidationError):
        filled(dags["reprocess.stock_stats"], values)


@pytest.mark.parametrize(
    "values",
    [
        {"range": "from offsets to offsets", "from_offsets": {"0": 1}, "to_offsets": {"0": 5}},
        {
            "range": "from one time to another",
            "from_time": "2026-01-01T00:00:00+00:00",
            "to_time": "2026-01-01T01:00:00+00:00",
        },
        {"range": "everything"},
        {},
    ],
)
def test_the_form_takes_each_kind_of_range(dags: dict[str, DAG], values: dict[str, Any]) -> None:
    """What a person chooses is checked when the run is made."""
    filled(dags["replay.stock_stats"], values)


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"range": "tomorrow"},
            {"from_offsets": {"0": -1}},
            {"from_offsets": {"zero": 1}},
            {"from_offsets": "0"},
            {"from_offsets": {}},
        ),
        *({"to_offsets": {"0": "1; rm -rf ~"}}, {"from_time": "yesterday"}, {"range": ["everything"]}),
    ],
)
def test_the_form_refuses_what_is_no_range(dags: dict[str, DAG], values: dict[str, Any]) -> None:
    """Before any task is started."""
    with pytest.raises(ParamValidationError):
        filled(dags["replay.stock_stats"], values)


@pytest.mark.parametrize("run_id", ["../../etc/passwd", "a b", "x" * 65, "$(id)"])
def test_the_form_refuses_what_is_no_run(dags: dict[str, DAG], run_id: str) -> None:
    """A run id is a name."""
    with pytest.raises(ParamValidationError):
        filled(dags["validate.stock_stats"], {"run_id": run_id})


def filled(dag: DAG, values: dict[str, Any]) -> None:
    """Fill the DAG's form in, as the API server does when a run is triggered."""
    params = deepcopy(dag.params)  # resolving a value keeps it
    params.update(values)
    params.validate()


@pytest.fixture
def checkout_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Pipelines of the checkout plus one more file."""

    def make(code: str) -> Path:
        folder = tmp_path / "pipelines"
        shutil.copytree(project_root() / "include" / "pipelines", folder)
        (folder / "broken.py").write_text(code)
        monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(folder))
        return folder

    return make


@pytest.mark.parametrize("code", ["import no_such_module", "def (:", "raise SystemError('no')"])
def test_a_broken_pipeline_is_an_import_error_and_takes_no_other_down(
    checkout_with: Callable[[str], Path], code: str
) -> None:
    """Airflow's pages name the file; the DAGs of the good pipelines stay."""
    checkout_with(code)
    found, errors = {}, {}
    for file in FILES:
        bag = DagBag(dag_folder=file)
        found |= bag.dags
        errors |= bag.import_errors
    assert sorted(found) == ALL
    assert [Path(file).name for file in errors] == ["load_errors.py"]
    assert "broken.py" in "".join(errors.values())


def test_topics_are_archived_where_pipelines_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task a topic, one at a time, each topic once; no DAG where no pipeline asks for it."""
    code = """
from hindcast import Table, Topic, pipeline

def declare(name, archive):
    topic = Topic("shared", schema="ts timestamp", archive=archive)
    function = lambda frame: frame
    function.__name__ = name
    return pipeline(source=topic, event_time="ts", watermark="1 second", sink=Table(name), version=1)(function)

one, other, third = declare("one", True), declare("other", True), declare("third", False)
"""
    (tmp_path / "archived.py").write_text(code)
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path))
    bag = DagBag(dag_folder=PIPELINES_FILE)
    assert bag.import_errors == {}
    dag = bag.dags["archive"]
    assert [task.task_id for task in dag.tasks] == ["shared"]
    assert (type(dag.timetable).__name__, dag.max_active_runs, dag.max_active_tasks) == (
        "CronDataIntervalTimetable",
        1,
        1,
    )
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == "archive"


def test_reference_ranges_are_replayed_weekly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task for each pipeline that pins one, one at a time; no DAG where none does."""
    code = """
from hindcast import Table, Topic, pipeline

@pipeline(
    source=Topic("t", schema="ts timestamp"), event_time="ts", watermark="1 second", sink=Table("pinned"), version=1,
    reference=('{"0": 0}', '{"0": 500}'),
)
def pinned(frame):
    return frame
"""
    monkeypatch.setenv("HINDCAST_PIPELINES_DIR", str(tmp_path))
    assert DagBag(dag_folder=PIPELINES_FILE).dags == {}
    (tmp_path / "pinned.py").write_text(code)
    bag = DagBag(dag_folder=PIPELINES_FILE)
    assert bag.import_errors == {}
    dag = bag.dags["benchmark"]
    assert [task.task_id for task in dag.tasks] == ["pinned"]
    assert (dag.max_active_runs, dag.max_active_tasks) == (1, 1)
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == "benchmark"
