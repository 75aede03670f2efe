"""Replay a range, judge it, and let readers have its answer.

- ``replay.py hindcast|judge|correct --pipeline P RANGE [--version N] [--run-id ID]``
- ``replay.py verdict --run-id ID``
- ``replay.py benchmark --pipeline P`` replays the pipeline's reference range.

A verdict of a pipeline with the policy ``correct`` also corrects.

Progress goes to stderr; the last line of stdout is one JSON object. Exit codes: 0 passed, 2 bad input, 3 a
verdict that did not pass, 75 the stream has not consumed the range yet (try again later; ``awaited`` in the
object says what it waits for), 1 anything else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from hindcast import catalog
from hindcast.errors import (
    HindcastError,
    NothingLateError,
    NothingToReplayError,
    RangeNotYetConsumedError,
    VerdictFailedError,
)
from hindcast.leases.delta_store import read_leases
from hindcast.pipeline import Pipeline, Policy
from hindcast.processes.end_with_parent import end_with_parent, exit_now
from hindcast.replay.request import RANGE_OPTIONS, ReplayRequest, add_range_arguments, new_run_id
from hindcast.replay.run_table import Runs
from hindcast.settings import Settings
from hindcast.shards.active_version import active_pipeline
from hindcast.tables.control_tables import ControlTables

#: Up to so many records, a replay and its verdict run with the JVM's quick compiler alone. For 1,500 records
#: they use 29 seconds of CPU with it, and 52 with both: the JVM ends before the slow compiler's work pays.
FEW_RECORDS = 100_000


def main(arguments: list[str] | None = None) -> int:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asked = _parser().parse_args(arguments)
    try:
        result = _run(asked)
        print(json.dumps(result, default=str))
        if result.get("passed") is False:
            failed = "; ".join(result["failed"]) or "the expectations hold"
            raise VerdictFailedError(**{**result, "failed": failed})
    except NothingLateError as error:
        _print_state(asked, corrected=False, note=str(error))
    except NothingToReplayError as error:
        _print_state(asked, state="skipped", note=str(error))
    except RangeNotYetConsumedError as error:
        if error.awaited is not None:
            _print_state(asked, state="waiting", awaited=error.awaited.to_json())
        print(error, file=sys.stderr)
        return error.exit_code
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _print_state(asked: argparse.Namespace, **state: Any) -> None:
    print(json.dumps({"pipeline": asked.pipeline, **state}))


def _run(asked: argparse.Namespace) -> dict[str, Any]:
    """The object to print; a verdict's has ``passed``."""
    settings = Settings()
    if asked.command == "verdict":
        return _verdict(asked, settings)
    if asked.command == "benchmark":
        return _benchmark(asked, settings)
    return _replay(asked, settings)


def _verdict(asked: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    run = Runs(ControlTables(settings)).succeeded(asked.run_id)
    pipeline = catalog.load(settings.pipelines_dir).of(run["pipeline"], run["version"])
    return _judge(settings, pipeline, asked.run_id)


def _benchmark(asked: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    from hindcast.replay.benchmark import run_reference

    declared = catalog.load(settings.pipelines_dir)
    pipeline = active_pipeline(declared, read_leases(settings), asked.pipeline)
    batch, again = run_reference(lambda: _session(settings), settings, pipeline)
    return {"batch": batch.as_dict(), "re_execution": again.as_dict()}


def _replay(asked: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Replay the range; judge it too unless only its hindcast was asked for."""
    range_ = {option.field: getattr(asked, option.field) for option in RANGE_OPTIONS}
    request = ReplayRequest.parse(
        pipeline=asked.pipeline,
        run_id=asked.run_id or new_run_id(asked.pipeline, datetime.now(UTC)),
        version=asked.version,
        **range_,
    )
    declared = catalog.load(settings.pipelines_dir)
    pipeline = active_pipeline(declared, read_leases(settings), request.pipeline, request.version)
    from hindcast.replay.run_replay import run_replay
    from hindcast.verdict.expectations import check_types

    check_types(pipeline)
    done = run_replay(
        lambda: _session(settings, request.run_id), settings, pipeline, request, tried_again=asked.tried_again
    )
    if asked.command == "hindcast":
        return done.as_dict()
    if asked.command == "correct":
        pipeline = replace(pipeline, policy=Policy.CORRECT)
    return done.as_dict() | _judge(settings, pipeline, done.run_id)


def _judge(settings: Settings, pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    # Great Expectations takes some seconds to import; meanwhile Spark starts and compares.
    importing = threading.Thread(target=importlib.import_module, args=("great_expectations",), daemon=True)
    importing.start()
    from hindcast.verdict.apply_correction import correct
    from hindcast.verdict.judge import judge

    row = judge(lambda: _session(settings, run_id), settings, pipeline, run_id)
    failed = json.loads(row["failed"])
    ratios = json.loads(row["ratios"])
    shown = {**row, "failed": failed, "ratios": ratios}
    if pipeline.policy is Policy.CORRECT and not row["unexplained"]:
        shown["corrected"] = correct(settings, pipeline, run_id)["corrected"]
    return shown


def _session(settings: Settings, run_id: str = "") -> Any:
    """The one session of this process. The plan of the run is kept before Spark starts: its size is known."""
    from hindcast.spark.session import QUICK_COMPILER, build

    options = ""
    if run_id and Runs(ControlTables(settings)).planned_records(run_id) <= FEW_RECORDS:
        options = QUICK_COMPILER
    return build(settings, "hindcast-replay", options=options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("hindcast", "judge", "correct"):
        command = commands.add_parser(name)
        command.add_argument("--pipeline", required=True)
        command.add_argument("--version", type=int, default=0, help="the version; 0 for the active one")
        command.add_argument("--run-id", default="")
        add_range_arguments(command)
        command.add_argument(
            "--tried-again", action="store_true", help="exit code 75 does not end the run: the caller retries"
        )
    commands.add_parser("benchmark").add_argument("--pipeline", required=True)
    commands.add_parser("verdict").add_argument("--run-id", required=True)
    return parser


if __name__ == "__main__":
    end_with_parent()
    exit_now(main())
