"""Hindcast in another house, from the built package to the first verdict, with everything killed on the way.

The house has a Kafka with accounts, TLS and lists of who may do what; an object store that speaks S3's
interface; a Spark cluster of two workers; and an Airflow with one file of DAGs. Hindcast comes into it as a
package in a virtual environment of its own. While records arrive, a worker of Hindcast's, an executor of
Spark's and all of Airflow are killed. The program ends with 0 if the verdict then passes, over every record.

``make another-house`` runs it: some ten minutes on two cores. Everything listens on loopback, on free ports.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from support.s3_server import s3_server
from support.secured_broker import ADMIN, READER, SecuredBroker, secured_broker
from support.spark_cluster import Cluster, running_cluster
from support.waiting import wait_until

from hindcast.settings import Settings, project_root
from hindcast_sandbox.ports import free_ports

PIPELINE = "stock_stats"
TOPIC = "trades"
PARTITIONS = 4
ROWS_PER_SECOND = 40
SECONDS = 240
#: For a machine of two cores that runs all of this at once.
PATIENCE_SECONDS = 600.0
#: What a person's shell has, and nothing of this checkout's.
_INHERITED = ("PATH", "HOME", "JAVA_HOME", "LANG")
_DAGS = """from hindcast.airflow import generate_dags

generate_dags(globals())
"""
_COMPONENTS = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 -- a program's output


@dataclass
class House:
    """Where everything is. ``bin`` has the programs of the package's own environment."""

    folder: Path
    bin: Path
    broker: SecuredBroker
    cluster: Cluster
    store: dict[str, str]
    bucket: str
    api_port: int
    jars: Path
    airflow: list[subprocess.Popen[bytes]] = field(default_factory=list)
    load: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def environment(
        self, account: tuple[str, str] = READER, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        """What a person of this house would have in a file of variables."""
        password = self.folder / f"{account[0]}-password"
        spark = {"spark.cores.max": "1", "spark.executor.cores": "1", "spark.executor.memory": "640m"}
        ours = {
            "HOME": str(self.home),
            "JARS_DIR": str(self.jars),
            "PIPELINES_DIR": str(self.project / "pipelines"),
            "TABLES_URL": f"{self.bucket}/tables",
            "CHECKPOINTS_URL": f"{self.bucket}/checkpoints",
            "SCRATCH_URL": str(self.folder / "scratch"),
            "STORAGE_OPTIONS": json.dumps(self.store),
            "BOOTSTRAP_SERVERS": self.broker.accounts,
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": mechanism,
            "KAFKA_USERNAME": account[0],
            "KAFKA_PASSWORD_FILE": str(password),
            "KAFKA_CA_FILE": str(self.broker.authority.certificate),
            "SPARK_MASTER": self.cluster.url,
            "SPARK_CONF": json.dumps(spark),
            "WORKERS": "2",
        }
        own = {f"HINDCAST_{name}": value for name, value in ours.items()}
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        inherited["PATH"] = os.pathsep.join([str(self.bin), inherited["PATH"]])
        address = f"http://127.0.0.1:{self.api_port}"
        airflow = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__API__BASE_URL": address,
            "AIRFLOW__API__SECRET_KEY": self._secret("api"),
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret("jwt"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.project / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        }
        return {**inherited, **own, **airflow, **self.cluster.driver_environment()}

    def _secret(self, name: str) -> str:
        path = self.folder / f"{name}-secret"
        if not path.exists():
            path.write_text(secrets.token_hex(32))
            path.chmod(0o600)
        return path.read_text()

    def run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        """Run a program of the package's environment; return what it prints."""
        ended = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.project,
            env=environment or self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stdout}")
        return ended.stdout

    def listed(self, *command: str) -> Any:
        return json.loads(self.run("hindcast", *command, "--output", "json"))

    def start_airflow(self) -> None:
        for name, options in _COMPONENTS.items():
            command = [str(self.bin / "airflow"), name, *options]
            if name == "api-server":
                command += ["--host", "127.0.0.1", "--port", str(self.api_port), "--workers", "1"]
            with (self.folder / f"airflow-{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    cwd=self.project,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.airflow.append(process)

    def kill_airflow(self) -> None:
        """With all that its components have started in their process groups."""
        for process in self.airflow:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.airflow.clear()

    def kill_load(self) -> None:
        """If it runs still: a way that was cut short must leave nothing behind."""
        if self.load is not None:
            self.load.kill()
            self.load.wait()

    def workers(self) -> list[psutil.Process]:
        """The running workers of Hindcast in this house."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            if "hindcast.apps.consume" in command and str(self.bin) in command:
                found.append(process)
        return found

    def read(self) -> int:
        """How many records the stream has committed, by its offsets: a batch whose owner died before it wrote
        the row of the ledger has no count of its own.
        """
        ends: dict[str, int] = {}
        for batch in self.listed("checkpoints", "--limit", "100000"):
            for partition, end in batch["end_offsets"].items():
                ends[partition] = max(end, ends.get(partition, 0))
        return sum(ends.values())

    def held(self) -> list[str]:
        """The owners of all shards; empty if a shard has none."""
        shards = [lease for lease in self.listed("leases") if lease["status_type"] == "shard"]
        owners = [lease["lease_owner"] for lease in shards]
        if not all(owners):
            return []
        return owners


def wait(condition: Callable[[], object], what: str) -> None:
    say(f"waiting until {what}")
    wait_until(lambda: bool(condition()), PATIENCE_SECONDS, what, every=2.0)


@contextmanager
def house(folder: Path) -> Iterator[House]:
    """Build it, with the package in it, and take it down."""
    say("building the wheel, and a bare virtual environment with it")
    venv = folder / "venv"
    subprocess.run(["make", "bare", f"BARE={venv}"], cwd=project_root(), check=True)
    jars = Settings().spark_jars_dir
    with ExitStack() as ending:
        for name in ("broker", "cluster", "scratch", "project/pipelines", "project/dags"):
            (folder / name).mkdir(parents=True)
        say("starting a broker with accounts and TLS, an object store, and a Spark cluster of two workers")
        broker = ending.enter_context(secured_broker(folder / "broker", jars.parent / "kafka"))
        store = ending.enter_context(s3_server())
        cluster = ending.enter_context(
            running_cluster(folder / "cluster", executors=2, workers=2, has_library=True)
        )
        [port] = free_ports(1)
        made = House(folder, venv / "bin", broker, cluster, store.options, store.folder("house"), port, jars)
        for name, word in (ADMIN, READER):
            password = folder / f"{name}-password"
            password.write_text(word)
            password.chmod(0o600)
        shutil.copy(project_root() / "include" / "pipelines" / f"{PIPELINE}.py", made.project / "pipelines")
        (made.project / "dags" / "hindcast_dags.py").write_text(_DAGS)
        ending.callback(end_workers, made)
        ending.callback(made.kill_airflow)
        ending.callback(made.kill_load)
        yield made


def end_workers(made: House) -> None:
    """Nothing of the house outlives it."""
    workers = made.workers()
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.terminate()
    _, alive = psutil.wait_procs(workers, timeout=30)
    for worker in alive:
        worker.kill()


def let_in(made: House) -> None:
    """The reader's account may read the topic, and nothing else."""
    with KafkaAdminClient(**made.broker.admin_options()) as admin:
        shape = {"num_partitions": PARTITIONS, "replication_factor": 1}
        admin.create_topics({TOPIC: shape}, wait_for_metadata=True)
        topic = ResourcePattern(ResourceType.TOPIC, TOPIC)
        group = ResourcePattern(ResourceType.GROUP, "*")
        allowed = [(ACLOperation.READ, topic), (ACLOperation.DESCRIBE, topic), (ACLOperation.READ, group)]
        reader = f"User:{READER[0]}"
        admin.create_acls(
            [ACL(reader, "*", operation, ACLPermissionType.ALLOW, to) for operation, to in allowed]
        )


def live(made: House) -> None:
    """From the first DAG to the verdict."""
    say("fetching jars, making Airflow's database and the pool of Spark drivers")
    made.run("hindcast", "jars")
    made.run("airflow", "db", "migrate")
    made.run("airflow", "pools", "set", "hindcast_spark", "2", "Spark drivers of Hindcast")
    let_in(made)
    made.run("airflow", "dags", "reserialize")
    made.run("hindcast", "resume", PIPELINE)
    for dag in ("supervise", f"replay.{PIPELINE}", f"validate.{PIPELINE}"):
        made.run("airflow", "dags", "unpause", dag, "--yes")
    made.start_airflow()
    wait(lambda: len(made.workers()) == 2, "Airflow's DAG supervise has launched two workers")
    wait(made.held, "every shard has an owner")

    sent = ROWS_PER_SECOND * SECONDS
    say(f"sending {sent} records, by an account that may write")
    of_rows = ["--rows", str(sent), "--rows-per-second", str(ROWS_PER_SECOND)]
    made.load = subprocess.Popen(
        [str(made.bin / "hindcast"), "load", PIPELINE, *of_rows],
        cwd=made.project,
        env=made.environment(ADMIN, "PLAIN"),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait(lambda: made.read() > 0, "the stream has committed records")

    killed = made.workers()[0]
    say(f"kill -9 of the worker {killed.pid}")
    killed.kill()
    before = made.read()
    wait(lambda: made.read() > before and len(made.workers()) == 2, "the stream goes on, in two workers")

    executor = made.cluster.running_executors()[0]
    say(f"kill -9 of the executor {executor.pid}, one of {len(made.cluster.running_executors())}")
    executor.kill()
    before = made.read()
    wait(lambda: made.read() > before + 500, "the stream goes on")

    say("kill -9 of Airflow")
    made.kill_airflow()
    before = made.read()
    wait(lambda: made.read() > before + 500, "the stream goes on without Airflow")
    made.start_airflow()

    if made.load.wait(SECONDS + PATIENCE_SECONDS):
        raise SystemExit("the load failed")
    wait(lambda: made.read() >= sent, f"all {sent} records are committed")
    say("asking Airflow for a replay of everything, whose verdict follows")
    made.run("airflow", "dags", "trigger", f"replay.{PIPELINE}", "--conf", '{"range": "everything"}')
    wait(lambda: made.listed("verdicts"), "Airflow has a verdict")
    [verdict] = made.listed("verdicts")
    shown = {
        name: verdict[name] for name in ("run_id", "passed", "unexplained", "rows_compared", "input_rows")
    }
    say(f"the verdict: {json.dumps(shown)}")
    if not verdict["passed"] or verdict["unexplained"] or verdict["input_rows"] != sent:
        raise SystemExit("the verdict does not hold")


def main() -> None:
    """Exit with 0 if the verdict holds."""
    keep = "--keep" in sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="another-house-"))
    try:
        with house(folder) as made:
            live(made)
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
