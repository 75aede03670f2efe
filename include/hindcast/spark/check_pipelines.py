"""Find every mistake in every file of pipelines before a stream does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from hindcast.catalog import Catalog
from hindcast.errors import HindcastError, PipelineError, PipelineMistakesError
from hindcast.pipeline import Pipeline
from hindcast.spark.nondeterminism import suspects
from hindcast.spark.query_signature import analysed_plan, empty_result, signature_of

#: What a finding is of a pipeline: it runs, it is refused, or its verdicts will differ.
SOUND, REFUSED, SUSPECT = "sound", "refused", "suspect"


def check_catalog(spark: SparkSession, catalog: Catalog) -> Iterator[dict[str, Any]]:
    """A row for each mistake of each file, and one for each pipeline without any.

    A declaration is checked as it loads. A query is analysed against the columns of its topics.
    """
    for file, error in catalog.errors.items():
        for each in _each(error):
            yield _row(each.fields.get("pipeline"), None, each.fields.get("file", file), REFUSED, str(each))
    for pipeline in catalog.every():
        yield from _of_query(spark, pipeline)


def _of_query(spark: SparkSession, pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    place = f"{pipeline.file}:{pipeline.line}"
    try:
        signature_of(spark, pipeline)
        found = suspects(analysed_plan(empty_result(spark, pipeline)))
    except PipelineError as error:
        for each in _each(error):
            yield _row(pipeline.name, pipeline.version, place, REFUSED, str(each))
        return
    if found:
        problem = f"{'; '.join(found)}: a verdict will find rows that it cannot explain"
        yield _row(pipeline.name, pipeline.version, place, SUSPECT, problem)
    else:
        yield _row(pipeline.name, pipeline.version, place, SOUND, "")


def _each(error: HindcastError) -> list[HindcastError]:
    if isinstance(error, PipelineMistakesError):
        return list(error.errors)
    return [error]


def _row(name: Any, version: int | None, place: str, state: str, problem: str) -> dict[str, Any]:
    return {"pipeline": name, "version": version, "state": state, "place": place, "problem": problem}
