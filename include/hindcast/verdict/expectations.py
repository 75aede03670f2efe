"""Great Expectations over a verdict and the judged part of the sink, with Data Docs in ``HOME/data_docs``.

The validation results of all runs lie in one store, and the index of the pages is built from it. All else
lives in memory for one verdict. The store and the pages are written under a lock, because two verdicts may
end at once. The lock of a file keeps processes of one host apart.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pandas as pd

from hindcast.errors import PipelineError
from hindcast.pipeline import Pipeline
from hindcast.verdict.bounds import BoundFound, ColumnBound

DOCS = "data_docs"
FORM = '{"type": "expect_column_values_to_not_be_null", "column": "ticker"}'
#: Arguments that name the columns of an expectation; one without any of them looks at the table as a whole.
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
#: Results that the library's index lists. It reads each of them again at every verdict, while the verdicts of
#: all pipelines wait; `/hindcast/data-docs/` has an index of its own.
_IN_INDEX = 20
#: The numbers of a verdict that Great Expectations sees.
_VERDICT_COLUMNS = (
    "unexplained",
    "captured",
    "windows_compared",
    "rows_compared",
    "late_rows",
    "dead_letters",
    "rounding",
)
#: Held by the thread that imports the library: another one may ask for it meanwhile.
_IMPORTING = threading.Lock()
#: Values that an expectation's failure names.
_SAMPLE_VALUES = 5


@dataclass(frozen=True)
class Outcome:
    """``failed``: each expectation that does not hold, in words. ``page``: the verdict's page, relative to
    ``HOME/data_docs``.
    """

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
        name = expectation.get("type")
        if name not in known:
            raise PipelineError(
                file=pipeline.file,
                line=pipeline.line,
                pipeline=pipeline.name,
                problem=f"Great Expectations has no expectation of the type {name!r}",
                form=FORM,
            )


def columns_of(expectations: tuple[dict[str, Any], ...]) -> list[str] | None:
    """The columns that the expectations look at; None if one of them looks at the whole table."""
    named: dict[str, None] = {}  # in the order in which they are named
    for expectation in expectations:
        found = [expectation[argument] for argument in _COLUMN_ARGUMENTS if argument in expectation]
        if not found:
            return None
        for value in found:
            columns = value
            if isinstance(value, str):
                columns = [value]
            named.update(dict.fromkeys(columns))
    return list(named)


def validate(
    home: Path,
    pipeline: Pipeline,
    run_id: str,
    verdict: Mapping[str, Any],
    sink: pd.DataFrame | None,
    bounds: Sequence[ColumnBound] = (),
) -> Outcome:
    """Check the verdict's numbers and, if ``sink`` is given, the pipeline's own expectations.

    Then build the pages.

    :param verdict: the row of ``verdicts``; ``unexplained`` must be 0, and ``captured`` at least the
        pipeline's floor
    :param sink: the judged rows, the columns of :func:`columns_of`
    :param bounds: shown on the verdict's page. Those that are exceeded are not among what failed:
        :func:`hindcast.verdict.bounds.exceeded` says that, with the cure
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read when the library is imported
    figures = {name: verdict[name] for name in _VERDICT_COLUMNS}
    expected = [_between("unexplained", 0, 0), _between("captured", pipeline.captured_floor, 1)]
    of_bounds = set()
    for bound in bounds:
        name = f"{bound.kind.value} {bound.column}"
        rows_beyond = f"{name}: rows beyond"
        figures |= {name: _figure(bound.found), rows_beyond: bound.found.beyond}
        expected += [_between(name, None, bound.found.bound), _between(rows_beyond, 0, 0)]
        of_bounds |= {name, rows_beyond}
    judged = pd.DataFrame([figures])
    with _locked(home / "gx"):
        context = _context(home)
        at = datetime.now(UTC)
        name = f"{pipeline.name}.verdict"
        failed, page = _check(context, name, run_id, at, judged, tuple(expected), untold=of_bounds)
        if sink is not None and pipeline.expectations:
            failed_of_sink, _ = _check(
                context, f"{pipeline.name}.sink", run_id, at, sink, pipeline.expectations
            )
            failed += failed_of_sink
    docs = home / DOCS
    return Outcome(failed, str(page.relative_to(docs.resolve())))


def _figure(found: BoundFound) -> float | None:
    """What was measured. If it exceeds the bound by rounding alone, the bound."""
    if found.greatest is None or found.beyond:
        return found.greatest
    return min(found.greatest, found.bound)


def _between(column: str, least: float | None, greatest: float) -> dict[str, Any]:
    return {
        "type": "expect_column_values_to_be_between",
        "column": column,
        "min_value": least,
        "max_value": greatest,
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _main_that_has_a_file() -> Iterator[None]:
    """Give the main module a file, which it lacks under ``python -c``, while Great Expectations is imported.

    That import reaches Spark Connect. It takes a main module without a file for a test of Spark's own, and if
    gRPC is not installed it then ends the process with exit code 0, whatever the process was doing.
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


def import_meanwhile() -> threading.Thread:
    """Begin to import the library in a thread: it takes some seconds, in which the JVM starts.

    Later it would take Python from the thread that builds a comparison: each call of the JVM would wait.
    """
    importing = threading.Thread(target=_great_expectations, daemon=True, name="import")
    importing.start()
    return importing


def _great_expectations() -> Any:
    """The library. Importing it takes seconds, so that it is imported only to validate."""
    with _IMPORTING, _main_that_has_a_file():
        import great_expectations
    return great_expectations


def _context(home: Path) -> Any:
    gx = _great_expectations()
    from great_expectations.data_context.types.base import DataContextConfig, ProgressBarsConfig

    results = (home / "gx" / "results").resolve()
    pages = (home / DOCS).resolve()
    site = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {
            "class_name": "DefaultSiteIndexBuilder",
            "validation_results_limit": _IN_INDEX,
        },
        "store_backend": _in_folder(pages),
    }
    config = DataContextConfig(
        config_version=4.0,
        expectations_store_name="expectations",
        validation_results_store_name="results",
        checkpoint_store_name="checkpoints",
        stores={
            "expectations": _store("ExpectationsStore", _in_memory()),
            "results": _store("ValidationResultsStore", _in_folder(results)),
            "checkpoints": _store("CheckpointStore", _in_memory()),
            "validation_definition_store": _store("ValidationDefinitionStore", _in_memory()),
        },
        data_docs_sites={"local": site},
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    return gx.get_context(project_config=config, mode="ephemeral")


def _store(kind: str, backend: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": kind, "store_backend": backend}


def _in_memory() -> dict[str, Any]:
    return {"class_name": "InMemoryStoreBackend"}


def _in_folder(folder: Path) -> dict[str, Any]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)}


def _check(
    context: Any,
    name: str,
    run_id: str,
    at: datetime,
    frame: pd.DataFrame,
    expectations: tuple[dict[str, Any], ...],
    *,
    untold: Collection[str] = (),
) -> tuple[list[str], Path]:
    """Validate the frame; return each expectation that does not hold, in words, and the page that says so.

    :param untold: the columns of expectations that only the page tells of
    """
    gx = _great_expectations()
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.core.run_identifier import RunIdentifier

    asset = context.data_sources.add_pandas(name).add_dataframe_asset(run_id)
    suite = context.suites.add(gx.ExpectationSuite(name=name))
    for expectation in expectations:
        suite.add_expectation_configuration(_configuration(expectation))
    suite.save()
    batch = asset.add_batch_definition_whole_dataframe(run_id)
    definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[context.validation_definitions.add(definition)],
        actions=[UpdateDataDocsAction(name="docs", site_names=["local"])],
        result_format={"result_format": "BASIC", "partial_unexpected_count": _SAMPLE_VALUES},
    )
    run = RunIdentifier(run_name=run_id, run_time=at)
    result = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame}, run_id=run)
    ((key, found),) = result.run_results.items()
    broken = [one for one in found.results if not one.success]
    told = [one for one in broken if one.expectation_config.kwargs.get("column") not in untold]
    failed = [_in_words(one) for one in told]
    (site,) = context.get_docs_sites_urls(resource_identifier=key)
    return failed, Path(unquote(urlparse(site["site_url"]).path))


def _configuration(expectation: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    arguments = {name: value for name, value in expectation.items() if name != "type"}
    return ExpectationConfiguration(type=expectation["type"], kwargs=arguments)


def _in_words(result: Any) -> str:
    """As in ``expect column values to be between (column=trades): 3 values are not, e.g. [0, -1]``."""
    configuration = result.expectation_config
    given = [f"{name}={value}" for name, value in configuration.kwargs.items() if name != "batch_id"]
    words = f"{configuration.type.replace('_', ' ')} ({', '.join(given)})"
    raised = _exception_message(result.exception_info or {})
    if raised:
        return f"{words}: it could not be evaluated: {raised}"
    if "unexpected_count" in result.result:
        count = result.result["unexpected_count"]
        values = result.result.get("partial_unexpected_list")
        return f"{words}: {count} values are not, e.g. {values}"
    return f"{words}: found {result.result.get('observed_value')}"


def _exception_message(info: Mapping[str, Any]) -> str | None:
    """What was raised while an expectation was evaluated: given for the whole of it, or by metric."""
    whole: str | None = info.get("exception_message")
    if whole:
        return whole
    for metric in info.values():
        if isinstance(metric, dict) and metric.get("raised_exception"):
            message: str | None = metric["exception_message"]
            return message
    return None
