"""Replay a range, judge it, and let readers have its answer.

- ``python -m hindcast.apps.replay hindcast|judge|correct --pipeline P RANGE [--version N] [--run-id ID]``
- ``python -m hindcast.apps.replay verdict --pipeline P --run-id ID`` judges P by one of its replays.
- ``python -m hindcast.apps.replay benchmark --pipeline P`` replays the pipeline's reference range.

A verdict of a pipeline with the policy ``correct`` also corrects.

Progress goes to stderr; the last line of stdout is one JSON object. Exit codes: 0 passed, 2 bad input, 3 a
verdict that did not pass, 75 the stream has not consumed the range yet (try again later; ``awaited`` in the
object says what it waits for), 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import structlog

from hindcast import Hindcast, Policy
from hindcast.errors import (
    HindcastError,
    NothingLateError,
    NothingToReplayError,
    RangeNotYetConsumedError,
    VerdictFailedError,
)
from hindcast.processes.end_with_parent import end_with_parent, exit_now
from hindcast.replay.request import RANGE_OPTIONS, ReplayRequest, add_range_arguments


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
    hindcast = Hindcast()
    if asked.command == "verdict":
        return hindcast.judge(asked.run_id, of=asked.pipeline)
    pipeline = hindcast.pipeline(asked.pipeline)
    if asked.command == "benchmark":
        batch, recorded = pipeline.benchmark()
        return {"batch": batch.as_dict(), "re_execution": recorded.as_dict()}
    return _replay(asked, hindcast)


def _replay(asked: argparse.Namespace, hindcast: Hindcast) -> dict[str, Any]:
    """Replay the range; judge it too unless only its hindcast was asked for."""
    range_ = {option.field: getattr(asked, option.field) for option in RANGE_OPTIONS}
    request = ReplayRequest.parse(
        pipeline=asked.pipeline, run_id=asked.run_id, version=asked.version, **range_
    )
    pipeline = hindcast.pipeline(asked.pipeline, asked.version)
    is_judged = asked.command != "hindcast"
    done = pipeline.run(request, tried_again=asked.tried_again, is_judged=is_judged)
    if asked.command == "hindcast":
        return done.as_dict()
    policy = None
    if asked.command == "correct":
        policy = Policy.CORRECT
    return done.as_dict() | pipeline.judge(done.run_id, policy=policy)


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
    verdict = commands.add_parser("verdict")
    verdict.add_argument("--pipeline", required=True)
    verdict.add_argument("--run-id", required=True)
    return parser


if __name__ == "__main__":
    end_with_parent()
    exit_now(main())
