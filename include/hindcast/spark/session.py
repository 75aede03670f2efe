"""Build the one Spark session of a process."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from hindcast.errors import PrerequisiteError, SettingsRefusedError
from hindcast.kafka.security import java_properties
from hindcast.pipeline import Pipeline
from hindcast.settings import S3, Settings
from hindcast.spark import object_store, scratch
from hindcast.spark.lookups import LOOKUPS

#: On a local disk both of Spark's managers write a temporary file and rename it. The default one also asks
#: for symbolic links, and Hadoop answers that by starting a process for each file: 28 % of a small batch's
#: CPU (0.48 against 0.35 s, 2 cores). This one leaves a file that exists as it is, without an error: if a
#: batch runs again after a crash, the state that it left the first time stays. So a number must always be the
#: number of the same batch (:func:`without_empty_batches`).
LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
#: Hadoop's own file system of a local disk starts a process, ``chmod``, for each file: eight for a batch with
#: two reducers. This one asks the system.
_LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
_LOCAL_FILES_JAR = "hadoop-bare-naked-local-fs"
#: In S3 Spark's default writes a file under another name and renames it: a copy and a deletion. This one ends
#: an upload or gives it up: 42 requests a batch instead of 100.
S3_CHECKPOINTS = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
#: The jar that has it. A deployment with jars of its own may do without.
_CLOUD_JAR = "spark-hadoop-cloud"
_STATE_IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_STATE_ON_DISK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
#: JVM options for a process that lives for minutes: the quick compiler alone. The optimising one competes
#: with a young JVM's work for the cores (the first batch of a query 6.5 instead of 10.0 s, the tenth 0.5
#: instead of 1.0 s, on 2 cores with two workers).
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
#: For one of several JVMs on a small machine. A heap that is given back at once is full again at once: with
#: 10 to 30 % left free a worker's JVM stood still for 0.3 to 1 s each 5 to 30 s (19 whole collections in its
#: first 5 minutes; 5 with these options).
_SMALL_JVM = (
    "-XX:+UseSerialGC -Xmn192m -XX:MetaspaceSize=192m -XX:MinHeapFreeRatio=40 -XX:MaxHeapFreeRatio=70"
    " -XX:MaxDirectMemorySize=256m -XX:ReservedCodeCacheSize=128m"
)

#: Avro makes room for the length that a record claims before it reads on: five bytes that claim 1.5 GB end
#: the JVM, and no mode of a parser catches that. These bounds make such a record poison. A Kafka record is
#: far smaller, and JSON's parser has bounds of its own.
_AVRO_LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 20_000_000,
    "org.apache.avro.limits.string.maxLength": 20_000_000,
    "org.apache.avro.limits.collectionItems.maxLength": 1_000_000,  # room is made for references: 4 to 8 MB
}


#: It warns of each plan that is cut at ``spark.sql.maxPlanStringLength``: once a batch, 20 MB a day for each
#: shard, in a log that lives as long as its process.
_CUTS_PLANS = "org.apache.spark.sql.catalyst.util.StringUtils"

#: What a deployment may change by ``settings.spark_conf``.
_DEFAULTS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "50",  # Spark keeps them though there is no UI
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
    # Spark describes each batch's plan for the UI that there is not.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "1000",
    "spark.ui.showConsoleProgress": "false",
    # One for each partition, which is made again for each batch if they are too many. By default 64.
    "spark.kafka.consumer.cache.capacity": "256",
}
#: What no deployment changes: results rest on it.
_FIXED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_OF_STREAMS = "spark.sql.streaming."
_OF_HADOOP = "spark.hadoop."


def keep_state_for(spark: SparkSession, pipeline: Pipeline, *, on_disk: bool = False) -> None:
    """Choose the state store of the query that starts next.

    A pipeline's own state needs RocksDB; all else is quicker in memory.

    :param on_disk: take RocksDB whatever the pipeline: it writes the whole state with each batch, so one
        batch's files are all that a copy of the state needs
    """
    provider = _STATE_IN_MEMORY
    if pipeline.re_execute or on_disk:
        provider = _STATE_ON_DISK
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)


@contextmanager
def without_empty_batches(spark: SparkSession) -> Iterator[None]:
    """A query that is started meanwhile runs no batch of its own accord: each of its batches reads something.

    By default Spark runs one more if the watermark has moved, to emit what is closed.
    """
    before = str(spark.conf.get(_EMPTY_BATCHES))
    spark.conf.set(_EMPTY_BATCHES, "false")
    try:
        yield
    finally:
        spark.conf.set(_EMPTY_BATCHES, before)


def class_archive(settings: Settings) -> Path:
    """Where the archive of this JVM's and these jars' classes is, or would be.

    See :mod:`hindcast.spark.jvm_class_archive`.
    """
    parts = []
    java = shutil.which(_java_command())
    if java:
        parts.append(Path(java).resolve())
    parts += sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    seen = []
    for part in parts:
        status = part.stat()
        seen.append(f"{part} {status.st_size} {status.st_mtime_ns}")
    name = hashlib.sha256("|".join(seen).encode()).hexdigest()[:12]
    return settings.spark_jars_dir / f"classes-{name}.jsa"


def _java_command() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        return str(Path(home, "bin", "java"))
    return "java"


def build(
    settings: Settings, name: str, *, shuffle_partitions: int = 2, cpus: str | None = None, options: str = ""
) -> SparkSession:
    """A session with Delta and Kafka, in UTC.

    The jars come from ``settings.spark_jars_dir``; ``hindcast jars`` fills it.

    :param shuffle_partitions: is part of a streaming query's state layout, so it never follows the machine
    :param cpus: another Spark master than ``settings.spark_master``
    :param options: more for the driver's JVM
    :raises PrerequisiteError: if the jars have not been fetched
    :raises SettingsRefusedError: if ``settings.spark_conf`` has a setting that is Hindcast's own
    """
    jars = sorted(str(jar) for jar in settings.spark_jars_dir.glob("*.jar"))
    if not jars:
        problem = f"{settings.spark_jars_dir} holds none"
        raise PrerequisiteError(what="Spark's jars", problem=problem, cure="Run `hindcast jars`.")
    of_store = object_store.jars_of(settings)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    place = scratch.claim(settings.home)
    fixed = {
        **_FIXED,
        "spark.app.name": name,
        "spark.master": cpus or settings.spark_master,
        "spark.jars": ",".join([*jars, *of_store]),
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.local.dir": str(place),
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        # The driver is a process of this machine on every master. Its extra options are the deployment's.
        "spark.driver.defaultJavaOptions": _driver_options(settings, options, place),
        # Not its extra options: those are the deployment's, they come after these and may set another bound.
        "spark.executor.defaultJavaOptions": " ".join(
            f"-D{name}={value}" for name, value in _properties(settings).items()
        ),
        LOOKUPS: settings.table("lookups"),
    }
    if fixed["spark.master"].startswith("local"):
        # Nothing listens beyond this machine.
        fixed["spark.driver.host"] = "127.0.0.1"
        fixed["spark.driver.bindAddress"] = "127.0.0.1"
        fixed[scratch.PLACE] = str(place)
    else:
        fixed[scratch.PLACE] = settings.scratch()
    checkpoints = settings.checkpoint("any")
    if "://" not in checkpoints:
        fixed[CHECKPOINT_FILES] = LOCAL_CHECKPOINTS
    elif checkpoints.startswith(S3) and any(_CLOUD_JAR in jar for jar in of_store):
        fixed[CHECKPOINT_FILES] = S3_CHECKPOINTS
    _check_given(settings.spark_conf, fixed)
    given, of_hadoop = _divided(settings.spark_conf)
    session = SparkSession.builder.config(map={**_DEFAULTS, **given, **fixed}).getOrCreate()
    object_store.configure(session, settings)
    if fixed["spark.master"].startswith("local") and any(_LOCAL_FILES_JAR in jar for jar in jars):
        _use_local_files(session)
    _configure_hadoop(session, of_hadoop)
    _set_properties(session, settings)
    # The session's manager of streams starts the coordinator of state stores. Without it a batch with such
    # state fails.
    _ = session.streams
    session.sparkContext.setLogLevel("WARN")
    _silence(session, _CUTS_PLANS)
    return session


def _silence(session: SparkSession, name: str) -> None:
    """Let one of the JVM's loggers say nothing but errors."""
    context: Any = session.sparkContext
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)


def _check_given(given: dict[str, str], fixed: dict[str, str]) -> None:
    """:raises SettingsRefusedError: if the deployment's Spark settings have one that is Hindcast's own"""
    problems = []
    for key in sorted(given):
        if not key.startswith("spark."):
            problems.append(
                f"HINDCAST_SPARK_CONF: {key} is no setting of Spark's. Its names begin with `spark.`."
            )
        elif key in fixed or key.startswith(_OF_STREAMS):
            problems.append(
                f"HINDCAST_SPARK_CONF: results rest on {key}, so it is Hindcast's own. Remove it."
            )
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise SettingsRefusedError(count=len(problems), problems=listed)


def _divided(given: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The deployment's settings of Spark, and those of Hadoop, without the prefix that marks them."""
    of_spark = {}
    of_hadoop = {}
    for key, value in given.items():
        if key.startswith(_OF_HADOOP):
            of_hadoop[key.removeprefix(_OF_HADOOP)] = value
        else:
            of_spark[key] = value
    return of_spark, of_hadoop


def _configure_hadoop(session: SparkSession, given: dict[str, str]) -> None:
    """Give Hadoop's settings to the running JVM: they may be secrets, and all can read its command line."""
    context: Any = session.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    for key, value in given.items():
        hadoop.set(key, value)


def _use_local_files(session: SparkSession) -> None:
    """Let :data:`_LOCAL_FILES` serve the local disk from now on.

    It comes with Spark's other jars, which the JVM has not loaded yet when it first opens a file. So the file
    system that Hadoop has opened meanwhile is closed, which makes Hadoop forget it.
    """
    context: Any = session.sparkContext
    jvm = context._jvm
    hadoop = context._jsc.hadoopConfiguration()
    opened = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), hadoop)
    hadoop.set("fs.file.impl", _LOCAL_FILES)
    opened.close()


def _driver_options(settings: Settings, options: str, own: Path) -> str:
    """The options of the driver's JVM: a small JVM's, the caller's, and the archive if there is one."""
    archive = class_archive(settings)
    if archive.exists():
        options += f' "-XX:SharedArchiveFile={archive}" -Xlog:cds=off'
    return f'{_SMALL_JVM} {options} "-Djava.io.tmpdir={own}"'


def _properties(settings: Settings) -> dict[str, str]:
    """Properties of each JVM: Avro's bounds, and the addresses that Kafka's client may ask for tokens."""
    limits = {name: str(limit) for name, limit in _AVRO_LIMITS.items()}
    return {**limits, **java_properties(settings)}


def _set_properties(session: SparkSession, settings: Settings) -> None:
    """Set them in the driver's JVM, for another part of the process may have started it.

    Avro reads its bounds once, with the first record.
    """
    context: Any = session.sparkContext
    system = context._jvm.java.lang.System
    for name, value in _properties(settings).items():
        if system.getProperty(name) is None:
            system.setProperty(name, value)


@contextmanager
def cached(rows: DataFrame) -> Iterator[DataFrame]:
    """The frame, kept in memory and then on local disk while the context lasts."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def bytes_of(rows: DataFrame) -> int:
    """How large the rows are, as Spark estimates it by their files; a huge number if it cannot tell."""
    plan: Any = rows._jdf.queryExecution().optimizedPlan()
    return int(plan.stats().sizeInBytes())
