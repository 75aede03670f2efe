"""How much memory Arrow takes while a test reads tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

#: What was allocated from a pool goes back to it when it is freed, which may be long after: by a thread that
#: tidies a table meanwhile, or by the garbage collector. A pool that is gone by then ends the process.
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """All that Arrow takes meanwhile comes from this pool, whose ``max_memory()`` is the peak in bytes."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
