"""A replay and its verdict within a DAG of somebody else's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.serialization.serialized_objects import DagSerialization

from hindcast.airflow import HindcastTaskGroup
from hindcast.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def dag() -> DAG:
    """The group between two tasks, in a DAG that replays nightly."""
    nightly = CronDataIntervalTimetable("@daily", timezone="UTC")
    with DAG("nightly", schedule=nightly, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as made:
        checked = HindcastTaskGroup("checked", pipeline="stock_stats")
        EmptyOperator(task_id="load") >> checked >> EmptyOperator(task_id="publish")
    return made


def test_what_follows_waits_for_the_verdict(dag: DAG) -> None:
    """A replay, its verdict, and then the rest."""
    after = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert after == {
        "load": set(),
        "checked.hindcast": {"load"},
        "checked.judge": {"checked.hindcast"},
        "publish": {"checked.judge"},
    }


def test_its_tasks_are_those_of_a_driver(dag: DAG) -> None:
    """They take slots of the pool, are tried again, and run one at a time; no asset event is raised."""
    for name in ("hindcast", "judge"):
        task = dag.get_task(f"checked.{name}")
        assert (task.pool, task.max_active_tis_per_dag, task.outlets) == (Settings().spark_pool, 1, [])
        assert task.retries > 0
    assert dag.get_task("checked.hindcast").choice == "data interval of the run"
    assert dag.get_task("checked.judge").run_id.key == "run_id"


def test_airflow_can_store_it(dag: DAG) -> None:
    """As the DAG processor does."""
    stored: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == {"load", "publish", "checked.hindcast", "checked.judge"}
