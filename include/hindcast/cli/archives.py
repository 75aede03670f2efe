"""The commands for archives of topics: copy a topic, list the archived topics, compare the two."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hindcast import Hindcast
from hindcast.cli.listings import show
from hindcast.cli.names import meant
from hindcast.cli.options import EveryOption, FormatOption, WatchOption, WideOption
from hindcast.cli.output import Format, Output
from hindcast.cli.pipelines import run_app
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError, UnknownArchiveError
from hindcast.pipeline import check_topic

TopicArgument = Annotated[str, typer.Argument(help="the topic's name")]
AcceptGapOption = Annotated[
    str, typer.Option("--accept-gap", help="continue without offsets that the topic has dropped, and say why")
]
StepOffsetsOption = Annotated[
    int, typer.Option("--step-offsets", min=1, help="offsets copied with one commit")
]
COLUMNS = Columns(
    ["topic", "rows", "bytes", "newest_at", "ranges", "gaps"], prose=frozenset({"ranges", "gaps"})
)

app = typer.Typer(
    no_args_is_help=True,
    help="Keep a topic's records beyond its retention, so that old ranges can be replayed.",
)


@app.command()
def run(
    topic: TopicArgument,
    accept_gap: AcceptGapOption = "",
    step_offsets: StepOffsetsOption = 1_000_000,
    output: FormatOption = Format.TABLE,
) -> None:
    """Copy the topic's records that its archive lacks, up to the topic's present end. Each record is copied
    once.
    """
    arguments = ["run", check_topic(topic)]
    if accept_gap:
        arguments += ["--accept-gap", accept_gap]
    arguments += ["--step-offsets", str(step_offsets)]
    try:
        run_app("archive", arguments, output)
    except typer.Exit as end:
        if end.exit_code == BadInputError.exit_code:
            _print_hint(_meant(Hindcast(), topic))
        raise


TableOption = Annotated[str, typer.Option("--table", help="a Delta table of the topic's records: its URL")]
AcceptHolesOption = Annotated[
    str, typer.Option("--accept-holes", help="count offsets without a record as archived, and say why")
]


@app.command("import")
def import_(
    topic: TopicArgument,
    table: TableOption,
    accept_holes: AcceptHolesOption = "",
    step_offsets: StepOffsetsOption = 1_000_000,
    output: FormatOption = Format.TABLE,
) -> None:
    """Copy records from before the archive's beginning out of a Delta table. Each record is copied once.

    The table has the columns of Spark's Kafka source: partition, offset, timestamp, key, value; and if it has
    them topic, timestampType, headers.
    """
    arguments = ["import", check_topic(topic), "--table", table]
    if accept_holes:
        arguments += ["--accept-holes", accept_holes]
    arguments += ["--step-offsets", str(step_offsets)]
    run_app("archive", arguments, output)


@app.command("list")
def list_archives(
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
) -> None:
    """List the archived topics: rows, bytes, newest broker timestamp, ranges of offsets by partition, and the
    accepted gaps.
    """
    hindcast = Hindcast()

    empty = "No topic is archived. `hindcast archive run TOPIC` archives one."
    form = Output(output, wide=wide, watch=watch, every=every)
    show(hindcast, form, hindcast.archives, COLUMNS, empty)


@app.command()
def verify(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the archive with the topic over the offsets that both still hold. Exits 3 if they differ."""
    from hindcast.tables.archive_schema import archived_topics

    check_topic(topic)
    archived = archived_topics(Hindcast().settings)
    if topic not in archived:
        _print_hint(meant(topic, archived))
        raise UnknownArchiveError(topic=topic)
    run_app("archive", ["verify", topic], output)


def _print_hint(hint: str) -> None:
    if hint:
        print(hint, file=sys.stderr)


def _meant(hindcast: Hindcast, topic: str) -> str:
    """The question which topic of the pipelines may have been meant; empty if it is one of them."""
    known: set[str] = set()
    for pipeline in hindcast.catalog.every():
        known.update(source.name for source in pipeline.topics)
    if topic in known:
        return ""
    return meant(topic, known)
