"""What a demo unpauses is paused again: by `hindcast down`, or when the next demo begins."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.errors import ServiceError
from hindcast.installation import Installation
from hindcast.processes.background_services import Services
from hindcast.settings import Settings
from hindcast_sandbox import airflow, demo
from hindcast_sandbox.airflow import spark_drivers
from hindcast_sandbox.demo import Demo, Drivers, Progress, count_drivers, unpause_until_down
from hindcast_sandbox.demo_schedules import pause_remembered, remember


class Airflow:
    """Airflow's API as far as schedules go: which DAGs are unpaused, and which calls it refuses."""

    def __init__(self) -> None:
        self.unpaused: set[str] = set()
        self.refused: dict[str, str] = {}
        self.running = True

    def components(self, _: Settings) -> list[Any]:
        return [SimpleNamespace(running=self.running)]

    def request(self, _: str, method: str, path: str, body: Any = None, token: str = "") -> Any:
        assert token == "token"
        if method == "GET":
            return {"dags": [{"dag_id": dag} for dag in sorted(self.unpaused)]}
        dag = path.rpartition("/")[2]
        if dag in self.refused:
            raise ServiceError(service="airflow", problem=self.refused[dag], log="")
        if body["is_paused"]:
            self.unpaused.discard(dag)
        else:
            self.unpaused.add(dag)
        return {}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    made = Airflow()
    monkeypatch.setattr(airflow, "components", made.components)
    monkeypatch.setattr(airflow, "request", made.request)
    monkeypatch.setattr(airflow, "login", lambda _: "token")
    return made


def test_what_a_demo_unpaused_is_paused_and_forgotten(home: Settings, api: Airflow) -> None:
    """What somebody had unpaused before the demo goes on; a second call has nothing to do."""
    api.unpaused = {"replay.stock_stats", "supervise"}
    said: list[str] = []
    installation = Installation(home)
    running = Demo(installation, installation.catalog["stock_stats"], Progress(installation))
    unpause_until_down(running, "replay.stock_stats", "validate.stock_stats")
    assert api.unpaused == {"replay.stock_stats", "validate.stock_stats", "supervise"}
    pause_remembered(home, said.append)
    assert api.unpaused == {"replay.stock_stats", "supervise"}
    assert said == ["Paused the schedules that a demo started: validate.stock_stats."]
    pause_remembered(home, said.append)
    assert len(said) == 1


def test_what_is_remembered_is_no_service(home: Settings) -> None:
    """The list of a demo's schedules does not stand among the records of its processes."""
    remember(home, ["replay.a"])
    assert Services(home.home).all() == []
    assert not list((home.home / "run").glob("*"))


def test_demos_one_after_the_other_are_all_remembered(home: Settings, api: Airflow) -> None:
    """A demo that was killed leaves its schedules to whoever comes next."""
    remember(home, ["replay.a"])
    remember(home, ["replay.b", "replay.a"])
    api.unpaused = {"replay.a", "replay.b"}
    pause_remembered(home, lambda _: None)
    assert api.unpaused == set()


def test_what_could_not_be_paused_is_tried_again(home: Settings, api: Airflow) -> None:
    """A busy Airflow refuses one; a DAG that is no more needs no pause; an Airflow that does not run is left
    alone.
    """
    remember(home, ["replay.a", "replay.b", "replay.gone"])
    api.unpaused, api.refused = (
        {"replay.a", "replay.b"},
        {"replay.a": "answered with 500", "replay.gone": "answered with 404"},
    )
    api.running = False
    pause_remembered(home, lambda _: None)
    assert api.unpaused == {"replay.a", "replay.b"}
    api.running = True
    pause_remembered(home, lambda _: None)
    assert api.unpaused == {"replay.a"}
    assert json.loads((home.home / "demo-dags.json").read_text()) == ["replay.a"]
    api.refused = {}
    pause_remembered(home, lambda _: None)
    assert api.unpaused == set()


def test_a_demo_waits_as_long_as_a_replay_goes_on(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sign of progress begins the time anew; without one it runs out."""
    progress = Progress(Installation(home))
    now = [0.0]
    monkeypatch.setattr(
        "hindcast_sandbox.demo.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    )
    with progress.waiting("the replay", 600.0) as wait:
        for logged in range(10):
            now[0] += 400.0
            wait.poll("", Drivers("1 runs", frozenset(), logged))
        now[0] += 400.0
        wait.poll("", Drivers("1 runs", frozenset(), 9))
        now[0] += 400.0
        with pytest.raises(ServiceError, match="in vain"):
            wait.poll("", Drivers("1 runs", frozenset(), 9))


def test_the_demo_counts_what_the_drivers_pool_does(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that starts, and a line in the log of one that runs, are progress; asked of Airflow's own record
    of the pool.
    """
    task = {
        "dag_id": "replay.a",
        "dag_run_id": "manual__1",
        "task_id": "hindcast",
        "map_index": -1,
        "try_number": 1,
        "state": "running",
    }
    paths: list[str] = []

    def request(_: str, __: str, path: str, body: Any = None, token: str = "") -> Any:
        paths.append(path)
        return {"task_instances": [task, {**task, "dag_id": "replay.b", "state": "scheduled"}]}

    monkeypatch.setattr(airflow, "request", request)
    before = count_drivers(home, "token")
    assert before.text == "1 replays or verdicts run, 1 wait"
    assert "pool=hindcast_spark" in paths[0]
    log = (
        home.logs_dir
        / "airflow"
        / "dag_id=replay.a"
        / "run_id=manual__1"
        / "task_id=hindcast"
        / "attempt=1.log"
    )
    log.parent.mkdir(parents=True)
    log.write_text("a line")
    after = count_drivers(home, "token")
    assert after.logged_bytes == 6
    assert after != before


@pytest.mark.parametrize(
    ("master", "memory", "cores", "memory_mib", "drivers"),
    [
        ("local[2]", "640m", 2, 8_000, 1),
        ("local[2]", "640m", 16, 64_000, 8),
        ("local[2]", "640m", 16, 8_000, 2),
        ("local[4]", "2g", 16, 64_000, 4),
        ("local[2]", "640m", 1, 1_000, 1),
        ("local[*]", "640m", 16, 64_000, 1),
        ("spark://here:7077", "640m", 4, 64_000, 4),
    ],
)
def test_drivers_fit_the_machine(
    tmp_path: Path, master: str, memory: str, cores: int, memory_mib: int, drivers: int
) -> None:
    """Cores of its own for each, all in half of the memory, and at least one."""
    assert (
        spark_drivers(
            Settings(home=tmp_path, spark_master=master, spark_driver_memory=memory), cores, memory_mib
        )
        == drivers
    )


def test_a_first_demo_stops_airflow_at_the_address_that_it_got(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its home has no address before Airflow was first started, and schedules are paused through that address."""
    asked: list[str] = []
    summary = {
        "passed": True,
        "dead_letters": 0,
        "dead_letters_sent": 0,
        "windows_compared": 1,
        "windows_needed": 1,
    }

    def judge(running: Demo, *_: Any, **__: Any) -> dict[str, Any]:
        settings = running.settings.model_copy(update={"airflow_url": "http://127.0.0.1:1"})
        running.installation = Installation(settings)
        return summary

    monkeypatch.setattr(demo, "judge", judge)
    monkeypatch.setattr(demo.stack, "down", lambda settings, **_: asked.append(settings.airflow_url))
    demo.run(home, "stock_stats", once=True, seconds=1.0, rows_per_second=1.0, seed=1)
    assert asked == ["http://127.0.0.1:1"]
