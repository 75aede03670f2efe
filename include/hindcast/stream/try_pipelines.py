"""Try pipelines over records that are made from their topics' schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from hindcast.errors import innermost
from hindcast.pipeline import Format, Pipeline
from hindcast.stream.sample_records import sample_batches
from hindcast.stream.trial import Trial, run_pipeline

EQUAL, DIFFERENT, NO_RESULTS, NOT_TRIED = "equal", "different", "no results", "not tried"
_OWN_TEST = "a test of your own may call hindcast.testing.run_pipeline"
_SHOWN = 3  # differences of a pipeline


def try_pipelines(
    spark: SparkSession, pipelines: Iterable[Pipeline], *, batches: int, rows: int, seed: int
) -> Iterator[dict[str, Any]]:
    """A row for each pipeline: what came of its trial, or why there was none."""
    for pipeline in pipelines:
        about = {"pipeline": pipeline.name, "version": pipeline.version}
        others = [topic.name for topic in pipeline.topics if topic.format is not Format.JSON]
        if others:
            problem = f"Samples are made of JSON alone, not of {', '.join(others)}; {_OWN_TEST}"
            yield {**about, "state": NOT_TRIED, "problem": problem}
            continue
        samples = sample_batches(pipeline, batches=batches, rows=rows, seed=seed)
        try:
            trial = run_pipeline(spark, pipeline, samples)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            yield {**about, "state": DIFFERENT, "problem": innermost(error)}
            continue
        yield {**about, "records": batches * rows * len(pipeline.topics), **_figures(trial)}


def _figures(trial: Trial) -> dict[str, Any]:
    unexplained = trial.comparison.unexplained
    state = EQUAL
    problem = ""
    if unexplained:
        state = DIFFERENT
        shown = []
        for each in trial.comparison.samples[:_SHOWN]:
            values = f"{each.column}: {each.stream_value} in the stream, {each.hindcast_value} in the batch"
            shown.append(f"{each.kind} {json.loads(each.keys)} {values if each.column else ''}".strip())
        problem = "; ".join(shown)
    elif not trial.rows.num_rows:
        state = NO_RESULTS
        problem = f"The function made nothing of the samples, so nothing was compared; {_OWN_TEST}"
    return {
        "state": state,
        "results": trial.rows.num_rows,
        "late_rows": trial.late_rows,
        "dead_letters": len(trial.dead_letters),
        "unexplained": unexplained,
        "problem": problem,
    }
