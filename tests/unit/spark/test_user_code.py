"""What a pipeline's own functions may do to the process that calls them."""

from __future__ import annotations

import sys

import pytest

from hindcast import catalog
from hindcast.errors import PipelineExitedError
from hindcast.settings import project_root
from hindcast.spark.user_code import call_user_code

PIPELINE = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]


@pytest.mark.parametrize("code", [0, 3, "there is no model"])
def test_code_that_exits_is_an_error_like_others(code: object) -> None:
    """It ends neither the worker that has other pipelines nor, with the code 0, a replay as if it were done."""

    def transformed(*_: object) -> None:
        sys.exit(code)  # type: ignore[arg-type]

    with pytest.raises(PipelineExitedError, match=rf"stock_stats: transformed called sys.exit\({code!r}\)"):
        call_user_code(PIPELINE, transformed, None)  # type: ignore[arg-type]


def test_code_that_raises_is_seen_as_it_is() -> None:
    """The line that raised is in the error."""

    def transformed(*_: object) -> None:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        call_user_code(PIPELINE, transformed, None)  # type: ignore[arg-type]
