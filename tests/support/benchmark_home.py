"""Where a benchmark runs: an empty home that is gone afterwards, and a broker if it needs one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil

from hindcast.settings import Settings
from hindcast_sandbox import broker, jars
from hindcast_sandbox.interruptible import interruptible


@contextmanager
def benchmark_home(name: str, **changes: Any) -> Iterator[Settings]:
    """One's own settings with another home, and the jars that they name. ``changes`` are of settings."""
    own = Settings()
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix=f"hindcast-{name}-", ignore_cleanup_errors=True) as folder,
    ):
        settings = own.model_copy(update={"home": Path(folder), "jars_dir": own.spark_jars_dir, **changes})
        with redirect_stdout(sys.stderr):
            jars.fetch(settings)
        yield settings


@contextmanager
def home_with_broker(name: str, **changes: Any) -> Iterator[Settings]:
    """The same, with a broker that ends with it."""
    with benchmark_home(name, **changes) as settings:
        address = broker.address(broker.start(settings))
        try:
            yield settings.model_copy(update={"bootstrap_servers": address})
        finally:
            broker.stop(settings)


def with_children(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes and all below them."""
    found = []
    for process in processes:
        found += [process, *process.children(recursive=True)]
    return found


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Memory of the processes that still run; a page that several share counts once, as Linux's PSS has it."""
    total = 0
    for process in processes:
        with suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total
