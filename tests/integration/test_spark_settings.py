"""Settings of Spark that a deployment gives, in a session of a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hindcast.settings import Settings

_SHOW = """
import json, pathlib
from hindcast.settings import Settings
from hindcast.spark.session import build

spark = build(Settings(), "shown")
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print(json.dumps({
    "ui": spark.conf.get("spark.ui.enabled"),
    "codec": spark.conf.get("spark.io.compression.codec"),
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "key": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    "of_a_query": spark._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.secret.key"),
    "told": [file.read_text() for file in pathlib.Path("/proc").glob(f"{pid}/cmdline")],
}))
"""


def test_a_deployment_gives_settings_of_spark(settings_factory: Callable[..., Settings]) -> None:
    """They reach the session, and Hadoop's reach its queries; a secret stands in no command line."""
    given = {"spark.io.compression.codec": "zstd", "spark.hadoop.fs.s3a.secret.key": "s3cret"}
    settings = settings_factory(spark_conf=given)
    environment = {**os.environ, **settings.environment()}
    ended = subprocess.run(
        [sys.executable, "-c", _SHOW], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    told = "".join(found.pop("told"))
    assert found == {"ui": "false", "codec": "zstd", "zone": "UTC", "key": "s3cret", "of_a_query": "s3cret"}
    assert "spark.io.compression.codec=zstd" in told
    assert "s3cret" not in told


_STREAM = """
import sys
from hindcast.settings import Settings
from hindcast.spark.session import build

settings = Settings()
spark = build(settings, "written")
records = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
writer = records.groupBy("value").count().writeStream.outputMode("update").format("noop")
query = writer.option("checkpointLocation", settings.checkpoint("counted")).start()
while (query.lastProgress or {"batchId": 0})["batchId"] < 3:
    assert query.isActive, query.exception()
query.stop()
"""


def test_a_checkpoint_is_written_without_a_process_for_each_file(
    settings_factory: Callable[..., Settings], tmp_path: Path
) -> None:
    """Hadoop's own file system runs `chmod` for each file of each batch. The files are there all the same, for
    their owner to write and for others to read.
    """
    noted = tmp_path / "noted"
    program = tmp_path / "bin" / "chmod"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {noted}\nexec /bin/chmod "$@"\n')
    program.chmod(0o755)
    settings = settings_factory()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **settings.environment(), "PATH": path}
    subprocess.run([sys.executable, "-c", _STREAM], env=environment, check=True)
    plans = Path(settings.checkpoint("counted")) / "offsets"
    assert (plans / "2").stat().st_mode & 0o777 == 0o644
    said = noted.read_text() if noted.exists() else ""
    assert settings.checkpoint("counted") not in said


_WIDE = """
from hindcast.settings import Settings
from hindcast.spark.session import build

settings = Settings()
spark = build(settings, "logged")
records = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
wide = records.selectExpr(*[f"value + {number} AS column_{number}" for number in range(100)])
query = wide.writeStream.format("noop").option("checkpointLocation", settings.checkpoint("wide")).start()
while (query.lastProgress or {"batchId": 0})["batchId"] < 5:
    assert query.isActive, query.exception()
query.stop()
"""


def test_a_batch_leaves_no_line_in_the_log(settings_factory: Callable[..., Settings]) -> None:
    """A worker's log lives for weeks, and there is a batch each second."""
    environment = {**os.environ, **settings_factory().environment()}
    ended = subprocess.run(
        [sys.executable, "-c", _WIDE], env=environment, stderr=subprocess.PIPE, text=True, check=True
    )
    said = Counter(line.partition(" WARN ")[2] for line in ended.stderr.splitlines() if " WARN " in line)
    assert [line for line, count in said.items() if count > 2] == []
    assert "the maximum is" not in ended.stderr
