"""Calls of the functions that a pipeline's author wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from hindcast.errors import PipelineExitedError
from hindcast.pipeline import Pipeline
from hindcast.pipeline_modules import PACKAGE


def call_user_code(pipeline: Pipeline, function: Callable[..., DataFrame], *frames: DataFrame) -> DataFrame:
    """What a function of the pipeline's makes of the frames.

    :raises PipelineExitedError: if it calls ``sys.exit``
    :raises Exception: whatever it raises
    """
    carry_code()
    try:
        return function(*frames)
    except SystemExit as error:
        raise PipelineExitedError(
            pipeline=pipeline.name, function=function.__name__, code=repr(error.code)
        ) from error


def carry_code() -> None:
    """Let Spark send the code of pipelines, and what they import from their folder, to its Python workers.

    Those cannot import it themselves.
    """
    module = sys.modules.get(PACKAGE)
    if module:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
