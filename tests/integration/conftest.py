"""One Spark session for all integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.local import jars
from hindcast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[SparkSession]:
    """A session with Delta and Kafka, as workers and replays have it."""
    from hindcast.stream import session

    settings = Settings(home=tmp_path_factory.mktemp("spark"), jars_dir=jars_dir)
    jars.fetch(settings)
    built = session.build(settings, "tests")
    yield built
    built.stop()
