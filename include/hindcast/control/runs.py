"""What the table ``runs`` says of a run: which states it has, and what it was for."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """A run's states; ``PLANNED`` leads to ``SUCCEEDED`` or ``FAILED``.

    ``SKIPPED``: there was nothing to replay; the run's note says why.
    """

    PLANNED = "planned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class RunKind(StrEnum):
    """What a run is for. The last two are of a pipeline's reference range, as a batch and through the streaming engine."""

    REPLAY = "replay"
    BENCHMARK = "benchmark"
    RE_EXECUTION = "re-execution"


#: Runs that are made to be compared with those of other versions.
BENCHMARKS = frozenset({RunKind.BENCHMARK, RunKind.RE_EXECUTION})
