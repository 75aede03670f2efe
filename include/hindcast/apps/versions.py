"""Begin a new version of a pipeline, compare it with the active one, or promote it.

After ``python -m hindcast.apps.versions``:

- ``begin --pipeline P --version N --from START [--new-table] [--by WHO]``
- ``compare --pipeline P``
- ``promote --pipeline P --version N [--despite REASON] [--since CHANGE] [--by WHO]``

The last line of stdout is one JSON object. Exit codes: 0 done, 2 bad input, 3 a comparison that did not
pass, 75 try again later.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import structlog

from hindcast import Hindcast
from hindcast.errors import HindcastError
from hindcast.processes.end_with_parent import end_with_parent, exit_now

FAILED = 3


def main(arguments: list[str] | None = None) -> int:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asked = _parser().parse_args(arguments)
    try:
        result = _run(asked)
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result, default=str))
    if not result.get("passed", True):
        return FAILED
    return 0


def _run(asked: argparse.Namespace) -> dict[str, Any]:
    pipeline = Hindcast().pipeline(asked.pipeline)
    if asked.command == "compare":
        return pipeline.compare_versions()
    if asked.command == "promote":
        return pipeline.promote(asked.version, despite=asked.despite, by=asked.by, since=asked.since)
    return pipeline.start_version(asked.version, asked.start, new_table=asked.new_table, by=asked.by)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser("begin")
    started.add_argument("--pipeline", required=True)
    started.add_argument("--version", type=int, required=True)
    started.add_argument("--from", dest="start", required=True)
    started.add_argument("--new-table", action="store_true")
    started.add_argument("--by", default="")
    promoted = commands.add_parser("promote")
    promoted.add_argument("--pipeline", required=True)
    promoted.add_argument("--version", type=int, required=True)
    for option in ("--despite", "--since", "--by"):
        promoted.add_argument(option, default="")
    commands.add_parser("compare").add_argument("--pipeline", required=True)
    return parser


if __name__ == "__main__":
    end_with_parent()
    exit_now(main())
