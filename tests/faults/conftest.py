"""What the fault tests share: the choice of rows, one long-lived fleet, and a fresh stream on it for each test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fleet import Fleet, Stream, Worker, fleet_settings
from live_stream import declare
from matrix import Matrix
from proof import Prove
from waiting import wait_until

from hindcast.control.desired import DesiredState
from hindcast.errors import HindcastError
from hindcast.local.load import ensure_topic
from hindcast.settings import Settings

if TYPE_CHECKING:
    from conftest import Broker

_NUMBERS = itertools.count()
#: I9: what kill -9 of a worker leaves of its JVM and Spark's Python workers is gone by then.
GONE_SECONDS = 15.0
SPARES = 12  # streams beyond one for each test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", default="", help="rows of the matrix, e.g. F5 or F1,F3")
    parser.addoption("--repeat", type=int, default=1, help="how often each test of the row runs, each time with the next seed")
    parser.addoption("--seed", type=int, default=0, help="the first seed; 0 takes one from the clock")
    parser.addoption("--nemesis-seconds", type=float, default=60.0, help="how long the nemesis goes on")
    parser.addoption("--intervals", type=int, default=24, help="how many past intervals the backfill replays")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--seed"):
        config.option.seed = int(time.time()) % 1_000_000
    rows = frozenset(row for row in config.getoption("--row").replace(" ", "").split(",") if row)
    config.pluginmanager.register(Matrix(rows), "matrix-of-faults")


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: first seed {config.getoption('--seed')}, each test {config.getoption('--repeat')} time(s)"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that takes a seed runs once for each of them."""
    if "seed" in metafunc.fixturenames:
        first, times = metafunc.config.getoption("--seed"), metafunc.config.getoption("--repeat")
        metafunc.parametrize("seed", range(first, first + times), ids=lambda seed: f"seed={seed}")


@pytest.fixture(scope="session")
def shared_fleet(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory, jars_dir: Path, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    """One home whose workers outlive a test. It declares a pipeline for each test; one is consumed only once it is wanted."""
    made = Fleet(fleet_settings(Settings(home=tmp_path_factory.mktemp("faults"), jars_dir=jars_dir), broker.bootstrap_servers))
    for number in range(len(request.session.items) + SPARES):
        declare(made.settings, _topic_of(number), shards=2, name=_name_of(number))
    yield made
    for process in made.alive():
        made.kill(process)
    try:
        wait_until(lambda: not made.remains(), GONE_SECONDS, "I9: the fleet's processes are gone")
    finally:
        made.end()


def _name_of(number: int) -> str:
    return f"stream_{number:04}"


def _topic_of(number: int) -> str:
    return f"{_name_of(number)}-trades"


@pytest.fixture
def stream(shared_fleet: Fleet, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Stream]:
    """A stream of the shared fleet's that no test has used: its own topic, pipeline, tables and checkpoints."""
    number = next(_NUMBERS)
    ensure_topic(broker.bootstrap_servers, _topic_of(number), 4)
    seed = request.node.callspec.params.get("seed", 11) if hasattr(request.node, "callspec") else 11
    made = Stream(shared_fleet, _topic_of(number), name=_name_of(number), seed=seed)
    yield made
    give_up(made)


def give_up(stream: Stream) -> None:
    """Nobody consumes the stream any more. Workers that do not let go of it are ended: the next test starts its own."""
    with suppress(AssertionError, HindcastError):
        stream.want(DesiredState.PAUSED)
        stream.wait_free(20.0)
        return
    stream.fleet.end()


@pytest.fixture
def pair(stream: Stream) -> tuple[Worker, Worker]:
    """Two workers, each of which owns a shard of the stream and has read something."""
    one, two = stream.fleet.whole()
    stream.want()
    stream.send_more()
    stream.wait_owned_by(one, two)
    stream.wait_read()
    return one, two


@pytest.fixture
def prove(record_property: Callable[[str, object], None]) -> Prove:
    """See :class:`proof.Prove`."""
    return Prove(record_property)
