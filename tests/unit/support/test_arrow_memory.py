"""Arrow's buffers may outlive the test that measured them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
#: A buffer that is freed after its pool's measurement has ended; the pools made between would take its place.
FREED_LATER = """
import gc
import pyarrow as pa
from support.arrow_memory import arrow_memory

with arrow_memory() as memory:
    kept = pa.array(range(100_000))
    assert memory.max_memory() >= 800_000
del memory
gc.collect()
others = [pa.proxy_memory_pool(pa.default_memory_pool()) for _ in range(5)]
del others
del kept
print("alive")
"""


def test_a_buffer_is_freed_after_the_measurement() -> None:
    """The process goes on: it was once ended by a signal, some tests later."""
    done = subprocess.run(
        [sys.executable, "-c", FREED_LATER],
        check=False,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
