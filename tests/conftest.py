"""What all tests share: settings in a home of their own, a real broker, and topics on it.

Each test run has its own homes and free ports, so it stands beside a running demo. The jars are those of
``HINDCAST_JARS_DIR`` (Spark's; Kafka's lie in the folder ``kafka`` beside it), else of the checkout's
``.hindcast``; what is missing is fetched.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from support.failure_report import failure_report
from support.fleet import Stream
from support.time_limit import TimeLimit

from hindcast.installation import Installation
from hindcast.settings import Settings, project_root
from hindcast_sandbox import broker as broker_service
from hindcast_sandbox import jars
from hindcast_sandbox.interruptible import interruptible
from hindcast_sandbox.load import ensure_topic

# How long an example takes is the machine's, and no test of the code.
hypothesis.settings.register_profile("default", deadline=None)

MARKED_FOLDERS = ("acceptance", "integration", "faults")
#: Where several processes share the tests, those that take long begin first, so that none of them ends alone.
FOLDERS_BY_LENGTH = ("acceptance", "integration", "protocols", "simulation", "unit")

#: A test that goes through a platform's whole life takes minutes: 350 s on two busy cores. It has waits of
#: its own, each with a limit.
ACCEPTANCE_SECONDS = 1_800.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--draw",
        action="store_true",
        help="of the tests marked `drawn` run as many cases as the mark says, by the seed",
    )
    parser.addoption(
        "--until",
        type=float,
        default=0.0,
        help="begin no test with a JVM after this time, in seconds since 1970; 0 for no limit",
    )


class NameFailures:
    """Names each failure at once. A long run lists them at its end, and not at all if it is killed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{report.when} failed: {report.nodeid}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NameFailures(config))
    config.pluginmanager.register(TimeLimit(config.getoption("--until"), MARKED_FOLDERS))
    while_tests_run = ExitStack()
    while_tests_run.enter_context(interruptible())
    config.add_cleanup(while_tests_run.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder, and put the folders in order; within a folder the random order stays.
    Draw, if that is asked for.
    """
    for item in items:
        for name in MARKED_FOLDERS:
            if name in item.path.parent.parts:
                item.add_marker(name)
        if item.get_closest_marker("acceptance") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ACCEPTANCE_SECONDS))
    items.sort(key=_place)
    if config.getoption("--draw"):
        left_out = _left_out(items, config.getoption("randomly_seed", 0))
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _place(item: pytest.Item) -> int:
    folders = [folder for folder in item.path.parent.parts if folder in FOLDERS_BY_LENGTH]
    return FOLDERS_BY_LENGTH.index(folders[0]) if folders else len(FOLDERS_BY_LENGTH)


def _left_out(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """The cases of drawn tests that this seed does not draw."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("drawn"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = []
    for test, all_of_it in cases.items():
        mark = all_of_it[0].get_closest_marker("drawn")
        assert mark is not None
        in_order = sorted(all_of_it, key=lambda item: item.nodeid)
        drawn = random.Random(f"{seed} {test}").sample(in_order, mark.args[0])
        left_out += [item for item in in_order if item not in drawn]
    return left_out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """A failed test's report says how its stream stood."""
    report = yield
    stream = getattr(item, "funcargs", {}).get("stream")
    if report.when != "teardown" and report.failed and isinstance(stream, Stream):
        report.sections.append(("How the stream stood", failure_report(stream)))
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_environment() -> Iterator[None]:
    """No setting of the developer's own shell or demo reaches a test; the place of the jars does."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [
            name for name in os.environ if name.startswith("HINDCAST_") and name != "HINDCAST_JARS_DIR"
        ]:
            patch.delenv(name)
        # The default home holds the settings file of a running demo.
        patch.setenv("HINDCAST_HOME", "/nonexistent/hindcast-home-of-no-test")
        yield


@pytest.fixture(autouse=True)
def _plain_logs() -> None:
    """Logs go where the errors of the running test go: Airflow, once imported, would keep them on a stream
    that an earlier test has closed.

    Never where its output goes: a thread that tidies a table would write into the JSON that a command prints.
    """
    structlog.reset_defaults()
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


@pytest.fixture(scope="session")
def jars_dir() -> Path:
    """Spark's jars; Kafka's are beside them."""
    named = os.environ.get("HINDCAST_JARS_DIR")
    return Path(named) if named else project_root() / ".hindcast" / "jars" / "spark"


@pytest.fixture
def settings_factory(tmp_path: Path, jars_dir: Path) -> Callable[..., Settings]:
    """Make settings in a new home; keyword arguments change single settings."""

    def make(**changes: Any) -> Settings:
        return Settings(
            **{"home": tmp_path / f"home-{uuid.uuid4().hex[:8]}", "jars_dir": jars_dir, **changes}
        )

    return make


@pytest.fixture
def settings(settings_factory: Callable[..., Settings]) -> Settings:
    """Settings in a home of this test's own, with no broker behind them."""
    return settings_factory()


@pytest.fixture
def installation(settings: Settings) -> Installation:
    """The installation of these settings."""
    return Installation(settings)


@dataclass(frozen=True)
class Broker:
    """A running broker; ``settings.home`` is where its data, its record and its log are."""

    bootstrap_servers: str
    settings: Settings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[Broker]:
    """One real Kafka for the whole run. A test that stops or kills a broker starts its own."""
    settings = Settings(home=tmp_path_factory.mktemp("broker"), jars_dir=jars_dir)
    jars.fetch(settings)
    try:
        yield Broker(broker_service.address(broker_service.start(settings)), settings)
    finally:
        broker_service.stop(settings)


@pytest.fixture
def topic_factory(broker: Broker) -> Callable[..., str]:
    """Create a topic of a new name on the shared broker."""

    def create(partitions: int = 4, name: str = "topic") -> str:
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        ensure_topic(broker.bootstrap_servers, unique, partitions)
        return unique

    return create


@pytest.fixture
def topic(topic_factory: Callable[..., str]) -> str:
    """A new topic of four partitions."""
    return topic_factory()
