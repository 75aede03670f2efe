"""Great Expectations over a verdict and over the judged part of the sink, with Data Docs in ``HOME/data_docs``.

The validation results of all runs lie in one store, from which the index of the pages is built; all else lives in memory for one verdict.
Writing the store and the pages is done under a lock, as two verdicts may end at once. A lock of a file keeps processes of one host apart.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pandas as pd

from hindcast.errors import PipelineError
from hindcast.pipeline import Pipeline
from hindcast.settings import Settings

DOCS = "data_docs"
FORM = '{"type": "expect_column_values_to_not_be_null", "column": "ticker"}'
#: Arguments that name the columns an expectation looks at; one without any of them looks at the table as a whole.
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
_SAMPLE_VALUES = 5


@dataclass(frozen=True)
class Outcome:
    """``failed``: each expectation that does not hold, in words. ``page``: the verdict's page, relative to ``HOME/data_docs``."""

    failed: list[str]
    page: str


def check_types(pipeline: Pipeline) -> None:
    """Refuse an expectation whose type Great Expectations does not have, without importing it.

    :raises PipelineError: naming the type
    """
    spec = importlib.util.find_spec("great_expectations")
    if spec is None or not spec.submodule_search_locations:
        return
    core = Path(spec.submodule_search_locations[0]) / "expectations" / "core"
    known = {path.stem for path in core.glob("expect_*.py")}
    for expectation in pipeline.expectations:
        if expectation.get("type") not in known:
            problem = f"Great Expectations has no expectation of the type {expectation.get('type')!r}"
            raise PipelineError(file=pipeline.file, line=pipeline.line, pipeline=pipeline.name, problem=problem, form=FORM)


def columns_of(expectations: tuple[dict[str, Any], ...]) -> list[str] | None:
    """The columns that the expectations look at; None where one of them looks at the whole table."""
    named: dict[str, None] = {}
    for expectation in expectations:
        found = [expectation[argument] for argument in _COLUMN_ARGUMENTS if argument in expectation]
        if not found:
            return None
        for value in found:
            named.update(dict.fromkeys([value] if isinstance(value, str) else value))
    return list(named)


def validate(settings: Settings, pipeline: Pipeline, run_id: str, verdict: Mapping[str, Any], sink: pd.DataFrame | None) -> Outcome:
    """Run the checkpoint on the verdict's numbers and, where ``sink`` is given, on the pipeline's own expectations; build the pages.

    :param verdict: the row of ``verdicts``; ``unexplained`` must be 0 and ``captured`` at least the pipeline's floor
    :param sink: the judged rows, the columns of :func:`columns_of`
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read when the library is imported
    columns = ("unexplained", "captured", "windows_compared", "rows_compared", "late_rows", "dead_letters", "rounding")
    judged = pd.DataFrame([{name: verdict[name] for name in columns}])
    exactly_none = {"type": "expect_column_values_to_be_between", "column": "unexplained", "min_value": 0, "max_value": 0}
    floor = {"type": "expect_column_values_to_be_between", "column": "captured", "min_value": pipeline.captured_floor, "max_value": 1}
    with _locked(settings.home / "gx"):
        context = _context(settings)
        at = datetime.now(UTC)
        failed, page = _check(context, f"{pipeline.name}.verdict", run_id, at, judged, (exactly_none, floor))
        if sink is not None and pipeline.expectations:
            failed += _check(context, f"{pipeline.name}.sink", run_id, at, sink, pipeline.expectations)[0]
    docs = settings.home / DOCS
    return Outcome(failed, str(page.relative_to(docs.resolve())))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _main_that_has_a_file() -> Iterator[None]:
    """Great Expectations imports Spark Connect, which takes a main module without a file, as of ``python -c``, for a test of Spark's own.

    Where gRPC is not installed it then ends the process with exit code 0, in the middle of whatever the process was doing.
    """
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = "<string>"
    try:
        yield
    finally:
        del main.__file__


def _great_expectations() -> Any:
    """The library. Importing it takes seconds, so only those pay who validate."""
    with _main_that_has_a_file():
        import great_expectations
    return great_expectations


def _context(settings: Settings) -> Any:
    gx = _great_expectations()
    from great_expectations.data_context.types.base import DataContextConfig, ProgressBarsConfig

    def stored(kind: str, folder: Path | None = None) -> dict[str, Any]:
        memory = {"class_name": "InMemoryStoreBackend"}
        files = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)}
        return {"class_name": kind, "store_backend": files if folder else memory}

    site = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str((settings.home / DOCS).resolve())},
    }
    config = DataContextConfig(
        config_version=4.0,
        expectations_store_name="expectations",
        validation_results_store_name="results",
        checkpoint_store_name="checkpoints",
        stores={
            "expectations": stored("ExpectationsStore"),
            "results": stored("ValidationResultsStore", (settings.home / "gx" / "results").resolve()),
            "checkpoints": stored("CheckpointStore"),
            "validation_definition_store": stored("ValidationDefinitionStore"),
        },
        data_docs_sites={"local": site},
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    return gx.get_context(project_config=config, mode="ephemeral")


def _check(
    context: Any, name: str, run_id: str, at: datetime, frame: pd.DataFrame, expectations: tuple[dict[str, Any], ...]
) -> tuple[list[str], Path]:
    gx = _great_expectations()
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.core.run_identifier import RunIdentifier

    asset = context.data_sources.add_pandas(name).add_dataframe_asset(run_id)
    suite = context.suites.add(gx.ExpectationSuite(name=name))
    for expectation in expectations:
        suite.add_expectation_configuration(_configuration(expectation))
    suite.save()
    batch = asset.add_batch_definition_whole_dataframe(run_id)
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[definition],
        actions=[UpdateDataDocsAction(name="docs", site_names=["local"])],
        result_format={"result_format": "BASIC", "partial_unexpected_count": _SAMPLE_VALUES},
    )
    result = context.checkpoints.add(checkpoint).run(
        batch_parameters={"dataframe": frame}, run_id=RunIdentifier(run_name=run_id, run_time=at)
    )
    ((key, found),) = result.run_results.items()
    failed = [_in_words(one) for one in found.results if not one.success]
    (url,) = [site["site_url"] for site in context.get_docs_sites_urls(resource_identifier=key)]
    return failed, Path(unquote(urlparse(url).path))


def _configuration(expectation: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(type=expectation["type"], kwargs={name: value for name, value in expectation.items() if name != "type"})


def _in_words(result: Any) -> str:
    """``expect column values to be between (column=trades, min_value=1): 3 values are not, e.g. [0, -1]``."""
    configuration = result.expectation_config
    arguments = ", ".join(f"{name}={value}" for name, value in configuration.kwargs.items() if name != "batch_id")
    words = f"{configuration.type.replace('_', ' ')} ({arguments})"
    raised = (result.exception_info or {}).get("exception_message") or next(
        (
            info["exception_message"]
            for info in (result.exception_info or {}).values()
            if isinstance(info, dict) and info.get("raised_exception")
        ),
        None,
    )
    if raised:
        return f"{words}: it could not be evaluated: {raised}"
    if "unexpected_count" in result.result:
        return f"{words}: {result.result['unexpected_count']} values are not, e.g. {result.result.get('partial_unexpected_list')}"
    return f"{words}: found {result.result.get('observed_value')}"
