"""The shapes of pipeline that faults are tried on, through the real engine: the answer in plain Python is the
one that Spark gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.live_stream import check_answer
from support.shapes import SHAPES, Shape, placed
from support.shard_harness import Shard
from support.simulated_stream import Clockwork, Simulated, trades


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_gives_the_answer_of_plain_python(shard_of: Callable[[Shape], Shard], shape: Shape) -> None:
    """Over several batches and a rebuild of the state, with late and poison rows. With fewer records the
    answer is another.
    """
    shard = shard_of(shape)
    records = placed(shape.spread(trades(7, count=400, partitions=2, rate_ms=100.0)))
    shard.serve(records[:200])
    shard.serve(records[200:], rebuild="the test wants it")
    shard.check()
    fewer = [
        record if number % 3 else replace(record, event_ms=None) for number, record in enumerate(records)
    ]
    with pytest.raises(AssertionError):
        check_answer(shard.settings, fewer, Simulated(Clockwork(), fewer), "shaped", shape)
