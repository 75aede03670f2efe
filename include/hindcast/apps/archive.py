"""Copy a topic into its archive, or compare the two.

- ``python -m hindcast.apps.archive run TOPIC [--accept-gap WHY]``
- ``python -m hindcast.apps.archive import TOPIC --table URL [--accept-holes WHY]``
- ``python -m hindcast.apps.archive verify TOPIC``

Progress goes to stderr; the last line of stdout is one JSON object. Exit codes: 0 done, 2 bad input or a
person must decide, 3 the archive differs from the topic, 75 the broker is away (try again later), 1
anything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import structlog

from hindcast.errors import ArchiveDiffersError, HindcastError
from hindcast.installation import Installation
from hindcast.processes.end_with_parent import end_with_parent, exit_now
from hindcast.settings import Settings


def main(arguments: list[str] | None = None) -> int:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asked = _parser().parse_args(arguments)
    installation = Installation()
    settings = installation.settings
    try:
        from hindcast.archive import copy_topic, import_table, verify

        if asked.command == "run":
            result = copy_topic.archive_topic(
                lambda: _session(settings),
                installation,
                asked.topic,
                accept_gap=asked.accept_gap,
                step_offsets=asked.step_offsets,
            )
            print(json.dumps(result))
        elif asked.command == "import":
            result = import_table.import_table(
                lambda: _session(settings),
                installation,
                asked.topic,
                asked.table,
                accept_holes=asked.accept_holes,
                step_offsets=asked.step_offsets,
            )
            print(json.dumps(result))
        else:
            found = verify.verify(lambda: _session(settings), installation, asked.topic)
            print(json.dumps(found))
            if not found["equal"]:
                sample = json.dumps(found["samples"][0])
                cure = verify.differs_cure(settings, asked.topic)
                raise ArchiveDiffersError(**found, sample=sample, cure=cure)
    except HindcastError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _session(settings: Settings) -> Any:
    from hindcast.spark.session import build

    return build(settings, "hindcast-archive")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("topic")
    run.add_argument("--accept-gap", default="")
    run.add_argument("--step-offsets", type=int, default=1_000_000)
    older = commands.add_parser("import")
    older.add_argument("topic")
    older.add_argument("--table", required=True)
    older.add_argument("--accept-holes", default="")
    older.add_argument("--step-offsets", type=int, default=1_000_000)
    commands.add_parser("verify").add_argument("topic")
    return parser


if __name__ == "__main__":
    end_with_parent()
    exit_now(main())
