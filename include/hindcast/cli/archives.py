"""The commands for archives of topics: copy a topic, list what is archived, compare the two."""

from __future__ import annotations

from typing import Annotated

import typer

from hindcast.cli.listings import FormatOption
from hindcast.cli.output import Format, Output
from hindcast.cli.streams import run_app
from hindcast.pipeline import check_name
from hindcast.settings import Settings

TopicArgument = Annotated[str, typer.Argument(help="the topic's name")]
COLUMNS = ["topic", "rows", "bytes", "newest_at", "ranges", "gaps"]

app = typer.Typer(no_args_is_help=True, help="Keep a topic's records beyond its retention, so that old ranges can be replayed.")


@app.command()
def run(
    topic: TopicArgument,
    accept_gap: Annotated[str, typer.Option("--accept-gap", help="go on without offsets that the topic has dropped, and say why")] = "",
    step_offsets: Annotated[int, typer.Option("--step-offsets", min=1, help="offsets copied with one commit")] = 1_000_000,
    output: FormatOption = Format.TABLE,
) -> None:
    """Copy what the topic holds and its archive does not, up to the topic's present end. Each record is copied once."""
    given = ["--accept-gap", accept_gap] if accept_gap else []
    run_app("archive.py", ["run", check_name("topic", topic), *given, "--step-offsets", str(step_offsets)], output)


@app.command("list")
def list_archives(output: FormatOption = Format.TABLE) -> None:
    """List the archived topics: rows, bytes, newest broker timestamp, ranges of offsets by partition, and the gaps that were accepted."""
    from hindcast.archive.holdings import listing

    Output(output).rows(listing(Settings()), COLUMNS, empty="No topic is archived. `hindcast archive run TOPIC` archives one.")


@app.command()
def verify(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the archive with the topic over the offsets that both still hold. Exits 3 where they differ."""
    run_app("archive.py", ["verify", check_name("topic", topic)], output)
