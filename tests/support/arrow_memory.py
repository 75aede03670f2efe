"""How much memory Arrow takes while a test reads tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """All that Arrow takes meanwhile comes from this pool, whose ``max_memory()`` is the peak in bytes."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
