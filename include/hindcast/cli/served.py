"""The commands of served tables: publish and register."""

from __future__ import annotations

from typing import Annotated

import typer

from hindcast import Hindcast
from hindcast.cli.names import check_pipeline
from hindcast.cli.options import SERVED, FormatOption, PipelineArgument
from hindcast.cli.output import Format, Output

NameOption = Annotated[
    str, typer.Option("--as", help="table, schema.table or catalog.schema.table; by default the pipeline's")
]
SqlOption = Annotated[bool, typer.Option("--sql", help="print the statement alone, for another engine")]

app = typer.Typer()


@app.command(rich_help_panel=SERVED)
def publish(pipeline: PipelineArgument, output: FormatOption = Format.TABLE) -> None:
    """Bring the pipeline's served table up to what readers get now. Workers do it every few seconds."""
    hindcast = Hindcast()
    check_pipeline(hindcast, pipeline)
    done = hindcast.pipeline(pipeline).publish()
    Output(output).row(done.as_dict())


@app.command(rich_help_panel=SERVED)
def register(
    pipeline: PipelineArgument,
    name: NameOption = "",
    sql: SqlOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Give the pipeline's served table a name in the catalog of Spark: Hive's metastore or Unity Catalog.

    HINDCAST_SPARK_CONF says which catalog that is.
    """
    hindcast = Hindcast()
    check_pipeline(hindcast, pipeline)
    found = hindcast.pipeline(pipeline)
    if sql:
        print(found.registration(name) + ";")
        return
    Output(output).row(found.register(name))
