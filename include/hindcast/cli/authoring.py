"""The commands for those who write pipelines: init, check and test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hindcast import Hindcast
from hindcast.cli.options import AUTHORING, FormatOption, WideOption
from hindcast.cli.output import Format, Output
from hindcast.cli.text_table import Columns
from hindcast.errors import BadInputError, MistakesFoundError, TrialFailedError

TRIALS = Columns(
    [
        "pipeline",
        "version",
        "state",
        "records",
        "results",
        "late_rows",
        "dead_letters",
        "unexplained",
        "problem",
    ],
    prose=frozenset({"problem"}),
)
FINDINGS = Columns(["pipeline", "version", "state", "place", "problem"], prose=frozenset({"problem"}))

_PIPELINE = '''\
"""How many trades of each ticker each minute had. Change the topic, the columns and the function."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast import Table, Topic, Window, pipeline


@pipeline(
    source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"),
    event_time="ts",
    watermark="10 seconds",
    window=Window("1 minute"),
    sink=Table("trades_a_minute", keys=["window", "ticker"]),
    version=1,
)
def trades_a_minute(trades: DataFrame) -> DataFrame:
    count, least = F.count("*").alias("trades"), F.min("ask").alias("least_ask")
    return trades.groupBy("window", "ticker").agg(count, least)
'''
_DAGS = '''\
"""The DAGs of the fleet and of every pipeline."""

from hindcast.airflow import generate_dags

generate_dags(globals())
'''
_LOAD_ERRORS = '''\
"""Shows in Airflow which pipelines were refused, as the import error of this file. It holds no DAG."""

from hindcast.airflow import check_pipelines

check_pipelines()
'''
_FILES = {
    "pipelines/trades_a_minute.py": _PIPELINE,
    "dags/hindcast_dags.py": _DAGS,
    "dags/load_errors.py": _LOAD_ERRORS,
    ".gitignore": ".hindcast/\n__pycache__/\n",
}

FolderArgument = Annotated[Path, typer.Argument(help="where; the working directory by default")]

NamesArgument = Annotated[list[str] | None, typer.Argument(help="which pipelines; all by default")]
BatchesOption = Annotated[int, typer.Option("--batches", min=2, max=90, help="batches of the stream")]
RowsOption = Annotated[int, typer.Option("--rows", min=1, help="records of each topic in each batch")]
SeedOption = Annotated[int, typer.Option("--seed", help="the same seed makes the same records")]

app = typer.Typer()


@app.command(rich_help_panel=AUTHORING)
def init(folder: FolderArgument = Path()) -> None:
    """Write a new project: a pipeline to change, and the files for Airflow's folder of DAGs.

    A file that is there already is left as it is.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInputError(problem=f"{folder} is a file", cure="Name a folder.")
    for name, text in _FILES.items():
        path = folder / name
        if path.exists():
            print(f"{path} is there already", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    print("Next: `hindcast check`, then `hindcast up` and `hindcast load PIPELINE`.", file=sys.stderr)


@app.command(rich_help_panel=AUTHORING)
def check(output: FormatOption = Format.TABLE, wide: WideOption = False) -> None:
    """List every mistake in every file of pipelines: declarations, queries, and what differs from run to run.

    It asks neither a broker nor a table. Exits 2 if there is a mistake.
    """
    from hindcast.spark.check_pipelines import SOUND, check_catalog

    hindcast = Hindcast()
    catalog = hindcast.catalog
    rows = list(check_catalog(hindcast.spark("hindcast-check", quick=lambda: True), catalog))
    empty = f"There are no pipelines in {hindcast.settings.pipelines_dir}."
    Output(output, wide=wide).rows(rows, FINDINGS, empty)
    mistakes = sum(row["state"] != SOUND for row in rows)
    if mistakes:
        raise MistakesFoundError(count=mistakes)


@app.command("test", rich_help_panel=AUTHORING)
def try_on_samples(
    names: NamesArgument = None,
    batches: BatchesOption = 6,
    rows: RowsOption = 100,
    seed: SeedOption = 1,
    output: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> None:
    """Run pipelines over sample records as a stream and as a batch, and compare: without a broker or tables.

    The records are made from the topics' schemas: some come late, some twice, some are malformed. Exits 3 if
    a stream differs from its batch. A pipeline whose function makes nothing of the samples is not compared.
    """
    from hindcast.spark.session import QUICK_COMPILER, build
    from hindcast.stream.try_pipelines import DIFFERENT, try_pipelines

    hindcast = Hindcast()
    for name in names or []:
        hindcast.catalog.versions(name)
    chosen = [one for one in hindcast.catalog.every() if not names or one.name in names]
    spark = build(hindcast.settings, "hindcast-test", cpus="local[2]", options=QUICK_COMPILER)
    spark.sparkContext.setLogLevel("ERROR")  # Spark warns of what a trial does on purpose
    found = []
    for row in try_pipelines(spark, chosen, batches=batches, rows=rows, seed=seed):
        found.append(row)
        print(f"{len(found)} of {len(chosen)}: {row['pipeline']} is {row['state']}", file=sys.stderr)
    empty = f"There are no pipelines in {hindcast.settings.pipelines_dir}."
    Output(output, wide=wide).rows(found, TRIALS, empty)
    different = [row["pipeline"] for row in found if row["state"] == DIFFERENT]
    if different:
        raise TrialFailedError(pipelines=", ".join(different))
