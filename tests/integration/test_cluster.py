"""The examples on a real Spark cluster, where executors are processes of their own: streams, rebuilds,
rehearsals and verdicts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark_cluster import Cluster, running_cluster

from hindcast import catalog
from hindcast.settings import Settings, project_root
from hindcast_sandbox import jars

if TYPE_CHECKING:
    from conftest import Broker

EXAMPLES = sorted(
    {pipeline.name for pipeline in catalog.load(project_root() / "include" / "pipelines").every()}
)
PROGRAM = project_root() / "tests" / "support" / "cluster_examples.py"
END_SECONDS = 60.0
DAY_SECONDS = 86_400.0
DEAD, LIVING = "job-dead", "job-living"

Live = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and one worker on this machine."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster_settings(
    cluster: Cluster, broker: Broker, jars_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Those of a deployment whose Spark master is the cluster."""
    settings = Settings(
        home=tmp_path_factory.mktemp("home"),
        jars_dir=jars_dir,
        bootstrap_servers=broker.bootstrap_servers,
        spark_master=cluster.url,
    )
    jars.fetch(settings)
    for job, age_seconds in ((DEAD, 2 * DAY_SECONDS), (LIVING, DAY_SECONDS / 2)):
        left_by_another_host(Path(settings.scratch(), job), age_seconds)
    return settings


def left_by_another_host(job: Path, age_seconds: float) -> None:
    """A job's folder whose job said so long ago that it lives."""
    job.mkdir(parents=True)
    (job / "rows").write_text("")
    (job / "alive").write_text("")
    said_at = time.time() - age_seconds
    os.utime(job / "alive", (said_at, said_at))


@pytest.fixture(scope="module")
def live(cluster: Cluster, cluster_settings: Settings) -> Iterator[Live]:
    """Run an example from its first batch to its verdict; all in one session."""
    environment = {**os.environ, **cluster_settings.environment(), **cluster.driver_environment()}
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(project_root() / "tests")])
    log, pipe = cluster.folder / "examples.log", subprocess.PIPE
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=environment, stdin=pipe, stdout=pipe, stderr=said
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        asked, answers = program.stdin, program.stdout

        def run(example: str) -> dict[str, Any]:
            asked.write(f"{example}\n".encode())
            asked.flush()
            for line in answers:
                if line.startswith(b'{"example"'):
                    return dict(json.loads(line))
            raise AssertionError(log.read_text(errors="replace")[-4000:])

        try:
            yield run
            asked.close()
            assert program.wait(END_SECONDS) == 0
        finally:
            program.kill()


@pytest.mark.drawn(1)  # each takes most of a minute, and the first as long again to start the cluster
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_lives_on_a_cluster(live: Live, cluster_settings: Settings, example: str) -> None:
    """It is rehearsed, streamed, its state made anew in the middle, and judged, with every row accounted for.

    Each job removes its folder, and those of jobs that died a day ago; it leaves the folder of a job that
    lives on another host.
    """
    outcome = live(example)
    assert "failed_with" not in outcome, outcome["failed_with"]
    assert outcome["unrehearsed"] == []
    assert (outcome["passed"], outcome["unexplained"], outcome["input_rows"]) == (True, 0, outcome["sent"]), (
        outcome
    )
    assert outcome["sink_rows"] > 0
    assert outcome["executors_avro_limit"] == "20000000", (
        "a record that says it is huge would end an executor"
    )
    assert [path.name for path in Path(cluster_settings.scratch()).iterdir()] == [LIVING]
