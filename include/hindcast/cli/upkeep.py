"""The command that keeps the tables small: maintain."""

from __future__ import annotations

import typer

from hindcast import Hindcast
from hindcast.cli.options import MACHINE, FormatOption, WideOption
from hindcast.cli.output import Format, Output
from hindcast.cli.text_table import Columns

COLUMNS = Columns(
    ["table", "version", "files_before", "files_after", "files_deleted", "seconds", "skipped"],
    prose=frozenset({"skipped"}),
)

app = typer.Typer()


@app.command(rich_help_panel=MACHINE)
def maintain(output: FormatOption = Format.TABLE, wide: WideOption = False) -> None:
    """Join the tables' small files, and delete what has been kept for long enough. Run it once a day where no
    Airflow does.

    Workers, replays and readers may run meanwhile. Exits 1 if a table could not be read, once all others are
    done.
    """
    from hindcast.tables.retention import check_maintained

    done = Hindcast().maintain()
    Output(output, wide=wide).rows(done, COLUMNS)
    check_maintained(done)
