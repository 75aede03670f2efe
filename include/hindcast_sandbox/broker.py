"""A whole Kafka on this machine: one KRaft node, from the jars that ``hindcast jars`` fetches. For the demo
and the tests.

It listens on loopback only. Its data is kept below ``HOME/kafka``, its ports too: after a restart clients
find it where it was.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import structlog

from hindcast.errors import PrerequisiteError, ServiceError
from hindcast.processes.background_services import Service, Services, last_lines
from hindcast.processes.detach import write_atomically
from hindcast.processes.environment import basic_environment
from hindcast.settings import Settings
from hindcast_sandbox.ports import kept_ports, listens

NAME = "broker"
READY_SECONDS = 60.0
STOP_SECONDS = 20.0  # a broker writes a clean-shutdown mark, else the next start reads all of its segments
#: 256 MB holds the demo many times over; the serial collector and the first compiler keep the rest of the
#: JVM small.
JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=64m",
    "-Djava.awt.headless=true",
    "-Dkafka.logs.dir=.",
)

LOG4J = """\
status=warn
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}{UTC} %-5p %m (%c{1})%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
# These repeat the whole configuration at each start, or each change of a partition.
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=warn
logger.common.name=org.apache.kafka.common.utils
logger.common.level=warn
logger.state.name=state.change.logger
logger.state.level=warn
logger.request.name=kafka.request.logger
logger.request.level=warn
logger.log.name=org.apache.kafka.storage.internals.log
logger.log.level=warn
logger.snapshot.name=org.apache.kafka.image.publisher
logger.snapshot.level=warn
"""

_log = structlog.get_logger(__name__)


def kafka_jars_dir(settings: Settings) -> Path:
    """The broker's jars lie beside Spark's: ``.../jars/kafka`` and ``.../jars/spark``."""
    return settings.spark_jars_dir.parent / "kafka"


def java() -> str:
    """The Java launcher: of ``JAVA_HOME``, else on PATH.

    :raises PrerequisiteError: where there is none
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if not found:
        raise PrerequisiteError(
            what="Java",
            problem="there is no `java` on PATH and JAVA_HOME names none",
            cure="Install a JDK, version 17 or newer.",
        )
    return found


def start(settings: Settings, *, ready_seconds: float = READY_SECONDS) -> Service:
    """Start the broker of this home and wait until it answers; one that runs already is returned as it is,
    one that was about to end is started again.

    :raises PrerequisiteError: where the jars or Java are missing
    :raises ServiceError: where it does not come up in time; the message ends with its last lines
    """
    services = Services(settings.home)
    running = services.find(NAME)
    if running and running.running:
        try:
            _wait_ready(running, ready_seconds)
        except ServiceError:
            if running.running:
                raise
        else:
            return running
    folder = settings.home / "kafka"
    classpath = _classpath(kafka_jars_dir(settings))
    ports = kept_ports(folder / "ports.json", ("kafka", "controller"))
    _configure(folder, ports, classpath, settings.logs_dir)
    arguments = [
        java(),
        *JVM_OPTIONS,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-cp",
        classpath,
        "kafka.Kafka",
        str(folder / "server.properties"),
    ]
    service = services.start(NAME, arguments, basic_environment(), ports=ports)
    began = time.monotonic()
    _wait_ready(service, ready_seconds)
    _log.info("The broker answers.", address=address(service), seconds=round(time.monotonic() - began, 1))
    return service


def stop(settings: Settings) -> bool:
    """Stop the broker; its data stays. True where there was one to stop."""
    services = Services(settings.home)
    service = services.find(NAME)
    if service:
        services.stop(service, grace_seconds=STOP_SECONDS)
    return service is not None


def address(service: Service) -> str:
    """The broker's bootstrap address."""
    return f"127.0.0.1:{service.ports['kafka']}"


def _classpath(jars: Path) -> str:
    if not any(jars.glob("kafka_*.jar")):
        raise PrerequisiteError(
            what="Kafka's jars", problem=f"{jars} holds no broker", cure="Run `hindcast jars`."
        )
    return str(jars / "*")


def _configure(folder: Path, ports: dict[str, int], classpath: str, logs: Path) -> None:
    # The voters are static: a dynamic quorum keeps its addresses in its own data, so it could not move to
    # another port.
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports['kafka']},CONTROLLER://127.0.0.1:{ports['controller']}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports['kafka']}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        # After kill -9 the controller waits this long before it lets the same broker in again; 9 s by
        # default.
        "broker.session.timeout.ms": 5000,
        "broker.heartbeat.interval.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,  # 128 MB by default, half of our heap
        "log.segment.bytes": 256 * 1024 * 1024,
    }
    write_atomically(
        folder / "server.properties", "".join(f"{name}={value}\n" for name, value in properties.items())
    )
    write_atomically(folder / "log4j2.properties", LOG4J)
    if (folder / "data" / "meta.properties").exists():
        return
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    arguments = [
        java(),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-cp",
        classpath,
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={cluster}",
        f"--config={folder / 'server.properties'}",
    ]
    made = subprocess.run(
        arguments,
        env=basic_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise ServiceError(
            service=NAME,
            problem=f"could not format its storage: {(made.stdout + made.stderr).strip()[-1000:]}",
            log=logs / f"{NAME}.log",
        )


def _wait_ready(service: Service, timeout_seconds: float) -> None:
    """Wait until the broker answers a metadata request and is itself among the brokers."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    deadline = time.monotonic() + timeout_seconds
    reason = "it does not listen"
    while time.monotonic() < deadline and service.running:
        if listens(service.ports["kafka"]):
            try:
                with KafkaAdminClient(
                    bootstrap_servers=address(service), request_timeout_ms=5000, bootstrap_timeout_ms=5000
                ) as admin:
                    if admin.describe_cluster()["brokers"]:
                        return
            except (KafkaError, OSError) as error:
                reason = str(error)
        time.sleep(0.1)
    problem = (
        f"did not answer within {timeout_seconds:.0f} s ({reason})"
        if service.running
        else "ended while it was starting"
    )
    raise ServiceError(
        service=NAME, problem=f"{problem}. Its last lines:\n{last_lines(service.log)}\n", log=service.log
    )
