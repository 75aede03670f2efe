"""What the fault tests share: the choice of rows, one long-lived fleet, and a fresh stream on it for each
test.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.aged_tables import age_ledger, age_sink
from support.check_all_oracles import CheckAllOracles
from support.fault_matrix import ON_STORE, ROWS, Matrix, seed_of, shape_of
from support.fleet import PARTITIONS, SHARDS, Worker, fleet_settings
from support.live_stream import declare
from support.raising_shape import raising
from support.s3_server import S3Server, in_store, s3_server
from support.shapes import APPEND, SHAPES, Shape
from support.waiting import wait_until
from support.warm_fleet import SLOTS, WarmFleet, WarmStream

from hindcast.errors import HindcastError
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import DesiredState
from hindcast_sandbox import jars
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker

_NUMBERS = itertools.count()
#: I9: what kill -9 of a worker leaves of its JVM and Spark's Python workers is gone by then.
GONE_SECONDS = 15.0
#: The store answers one request after the other. A shorter lease than this would try its patience alone.
STORE_LEASE_SECONDS = "10"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", default="", help="rows of the matrix, e.g. F5 or F1,F3")
    parser.addoption(
        "--shape",
        default="",
        choices=["", *SHAPES],
        help="the shape of the pipelines; by default the seed draws one",
    )
    parser.addoption(
        "--quick", action="store_true", help="one test of each row, drawn by the seed, with few records"
    )
    parser.addoption("--record", action="store_true", help="add what was run to tests/faults/runs.jsonl")
    parser.addoption(
        "--aged",
        action="store_true",
        help="20,000 commits of others in the stream's sink, a million rows in the ledger",
    )
    parser.addoption(
        "--store", action="store_true", help="tables and checkpoints in an object store of this machine"
    )
    parser.addoption(
        "--repeat",
        type=int,
        default=1,
        help="how often each test of the row runs, each time with the next seed",
    )
    parser.addoption("--seed", type=int, default=0, help="the first seed; 0 takes one from the clock")
    parser.addoption("--nemesis-seconds", type=float, default=60.0, help="how long the nemesis goes on")
    parser.addoption(
        "--intervals",
        type=int,
        default=0,
        help="how many past intervals the backfill replays; 0: 24, or 6 if quick",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--seed"):
        config.option.seed = int(time.time()) % 1_000_000
    rows = frozenset(row for row in config.getoption("--row").replace(" ", "").split(",") if row)
    if unknown := sorted(rows - ROWS.keys()):
        raise pytest.UsageError(
            f"--row: the matrix has no row {', '.join(unknown)}; it has {', '.join(ROWS)}"
        )
    if config.getoption("--store") and (local := sorted(rows - ON_STORE)):
        raise pytest.UsageError(
            f"--store: the faults of {', '.join(local)} reach into files of a local disk; "
            f"with a store run {', '.join(sorted(ON_STORE))}"
        )
    lease_seconds = os.environ.get("TEST_LEASE_SECONDS")
    if config.getoption("--record") and lease_seconds != (
        STORE_LEASE_SECONDS if config.getoption("--store") else None
    ):
        raise pytest.UsageError(
            "--record: runs with other leases and waits do not count; leave TEST_LEASE_SECONDS out, "
            f"and set it to {STORE_LEASE_SECONDS} with --store"
        )
    names = ("shape", "quick", "record", "until", "store")
    chosen = {name: config.getoption(f"--{name}") for name in names}
    config.pluginmanager.register(Matrix(rows, **chosen), "matrix-of-faults")


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"faults: first seed {config.getoption('--seed')}, each test {config.getoption('--repeat')} time(s)"
    )


@pytest.fixture(scope="session")
def object_store(request: pytest.FixtureRequest) -> Iterator[S3Server | None]:
    """Where the tables are; None for the local disk."""
    if not request.config.getoption("--store"):
        yield None
        return
    with s3_server() as made:
        yield made


@pytest.fixture(scope="session")
def placed(object_store: S3Server | None) -> Callable[[Settings], Settings]:
    """Put the tables and checkpoints of settings where this run has them."""

    def place(settings: Settings) -> Settings:
        if object_store is None:
            return settings
        jars.fetch(settings.model_copy(update={"storage_options": object_store.options}))
        return in_store(settings, object_store)

    return place


@pytest.fixture(scope="session")
def shared_fleet(
    broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
    jars_dir: Path,
    placed: Callable[[Settings], Settings],
) -> Iterator[WarmFleet]:
    """One home whose workers outlive a test. Each test declares a pipeline of its own, which they load once
    it is wanted.
    """
    settings = fleet_settings(
        Settings(home=tmp_path_factory.mktemp("faults"), jars_dir=jars_dir), broker.bootstrap_servers
    )
    made = WarmFleet(placed(settings.model_copy(update={"workers": SLOTS})))
    yield made
    made.calm()
    for process in made.alive():
        made.kill(process)
    try:
        wait_until(lambda: not made.remains(), GONE_SECONDS, "I9: the fleet's processes are gone")
    finally:
        made.end()
        made.history.stop()


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> bool:
    """Whether the quick forms run: few records, few kills."""
    return bool(request.config.getoption("--quick"))


@pytest.fixture
def shape(request: pytest.FixtureRequest) -> Shape:
    """The shape of the test's pipeline: the one of the command line, or one that the seed draws."""
    return SHAPES[shape_of(request.node, request.config.getoption("--shape"))]


@pytest.fixture
def stream(
    shared_fleet: WarmFleet, broker: Broker, shape: Shape, request: pytest.FixtureRequest
) -> Iterator[WarmStream]:
    """A stream of the shared fleet's that no test has used: its own topics, pipeline, tables and
    checkpoints.
    """
    made = _declared(shared_fleet, broker, shape, request)
    yield made
    give_up(made)


@pytest.fixture
def raising_stream(
    shared_fleet: WarmFleet, broker: Broker, request: pytest.FixtureRequest
) -> Iterator[WarmStream]:
    """A stream whose function raises on records that :func:`support.raising_shape.spoil` makes."""
    made = _declared(shared_fleet, broker, raising(APPEND), request)
    yield made
    give_up(made)


def _declared(fleet: WarmFleet, broker: Broker, shape: Shape, request: pytest.FixtureRequest) -> WarmStream:
    name = f"stream_{next(_NUMBERS):04}"
    topic = f"{name}-trades"
    for own in shape.topics(topic):
        ensure_topic(broker.bootstrap_servers, own, PARTITIONS)
    declare(fleet.settings, topic, shards=SHARDS, name=name, shape=shape)
    return WarmStream(fleet, topic, name=name, seed=seed_of(request.node) or 11, shape=shape)


def give_up(stream: WarmStream) -> None:
    """Nobody consumes the stream any more. Workers that do not let go of it are ended: the next test starts
    its own.
    """
    stream.fleet.calm()
    with suppress(AssertionError, HindcastError):
        stream.want(DesiredState.PAUSED)
        stream.wait_free(20.0)
        return
    stream.fleet.end()


@pytest.fixture
def pair(stream: WarmStream, request: pytest.FixtureRequest) -> tuple[Worker, Worker]:
    """Two workers, each of which owns a shard of the stream and has read something from it. With ``--aged`` its
    tables are old by then.
    """
    stream.want()  # before they start: a worker rehearses what is wanted
    stream.fleet.whole()
    stream.wait_shared()
    # Not before: until both own a shard, one of them may read all of it.
    stream.send_more()
    stream.wait_read()
    if request.config.getoption("--aged"):
        stream.pause()
        age_sink(stream.settings.table("sinks", stream.name))
        request.getfixturevalue("aged_ledger")
        stream.want()
        stream.wait_shared()
        stream.send_more()
        stream.wait_read()
    one, two = stream.owners()
    return one, two


@pytest.fixture(scope="session")
def aged_ledger(shared_fleet: WarmFleet) -> None:
    """A million batches of another pipeline in the fleet's ledger."""
    age_ledger(shared_fleet.settings)


@pytest.fixture
def prove(record_property: Callable[[str, object], None]) -> CheckAllOracles:
    """See :class:`support.check_all_oracles.CheckAllOracles`."""
    return CheckAllOracles(record_property)
