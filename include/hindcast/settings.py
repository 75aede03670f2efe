"""All settings: read from ``HINDCAST_*`` variables, else from ``$HINDCAST_HOME/settings.json``.

``hindcast up`` writes that file, so that every later command finds the embedded broker and tables without a
variable.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, JsonConfigSettingsSource, NoDecode, SettingsConfigDict
from pydantic_settings import PydanticBaseSettingsSource as Source

from hindcast.errors import BadNameError, SettingsRefusedError
from hindcast.pipeline import Pipeline, check_name

SETTINGS_FILE = "settings.json"
#: What the address of a folder in S3 begins with.
S3 = ("s3://", "s3a://")
PREFIX = "HINDCAST_"
#: From this similarity on, the name of a variable is taken for a misspelt setting; 1 is the same name.
_ALIKE = 0.85
#: Settings whose values are never shown, not even in an error, and never written to a file.
SECRET = frozenset({"kafka_password", "schema_registry", "storage_options", "spark_conf"})


def default_home() -> Path:
    """The folder of all local files: ``$HINDCAST_HOME``, else ``.hindcast`` below the working directory."""
    return Path(os.environ.get("HINDCAST_HOME", ".hindcast")).resolve()


def project_root() -> Path:
    """The checkout: the folder that holds ``include/hindcast``. An installed package has none."""
    return Path(__file__).resolve().parents[2]


def _default_pipelines_dir() -> Path:
    """The checkout's own pipelines, else the folder ``pipelines`` below the working directory."""
    own = project_root() / "include" / "pipelines"
    if own.is_dir():
        return own
    return Path("pipelines").resolve()


def _python_path() -> str:
    """``PYTHONPATH`` of a child process: what this process was given, after a library that is not installed
    into Python's own folder.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(Path(folder).resolve()) for folder in given if folder]
    library = Path(__file__).resolve().parents[1]
    if library != Path(sysconfig.get_path("purelib")).resolve() and str(library) not in folders:
        folders.insert(0, str(library))
    return os.pathsep.join(folders)


class Settings(BaseSettings):
    """All settings. Durations are in seconds. A path may be a URL of a store that deltalake and Spark both
    know.

    :raises SettingsRefusedError: lists all that are wrong, each with where it was set and a valid form
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    home: Path = Field(
        default_factory=default_home, description="local folder of logs, jars, broker and Airflow data"
    )
    tables_url: str = Field(
        default="", description="root of control tables, sinks and hindcasts; default HOME/tables"
    )
    checkpoints_url: str = Field(
        default="", description="root of Spark checkpoints; default HOME/checkpoints"
    )
    scratch_url: str = Field(
        default="",
        description="root of short-lived files that driver and executors of a Spark cluster share; "
        "default HOME/hindcast-scratch",
    )
    storage_options: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="JSON object of deltalake's options of an object store; Spark gets those of S3, too",
        repr=False,
    )
    bootstrap_servers: str = Field(
        default="127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated"
    )
    kafka_connection: str = Field(
        default="",
        description="id of the connection in Airflow, of the type Kafka, that has the brokers and the "
        "account for what Airflow starts",
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="how clients reach the brokers, as Kafka's `security.protocol`"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        default="SCRAM-SHA-512", description="as Kafka's `sasl.mechanism`"
    )
    kafka_username: str = Field(default="", description="the account of SASL; of OAuth the client's id")
    kafka_password: str = Field(
        default="",
        description="its password, or secret; a file is the better place, but this comes before it",
        repr=False,
    )
    kafka_password_file: Path | None = Field(
        default=None, description="file that holds the password; it is read for each connection"
    )
    kafka_oauth_token_url: str = Field(
        default="",
        pattern=r"""^(https?://[^\s"']+)?$""",
        description="where the mechanism OAUTHBEARER gets its access tokens, by the client credentials grant",
    )
    kafka_oauth_scope: str = Field(default="", description="the scope that it asks for there")
    kafka_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authorities that issue the brokers' certificates; default those of the "
        "machine and of Java",
    )
    kafka_certificate_file: Path | None = Field(
        default=None, description="PEM file of the client's own certificate, with its chain"
    )
    kafka_key_file: Path | None = Field(
        default=None, description="PEM file of that certificate's key (PKCS #8, not encrypted)"
    )
    schema_registry: Annotated[dict[str, Any], NoDecode] = Field(
        default_factory=dict,
        description="JSON object of the settings of Confluent's client by which topics with `registry=True` "
        "get their schemas: `url`, `basic.auth.user.info`, `ssl.ca.location` and so on",
        repr=False,
    )
    kafka_group_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="what the consumer groups begin with to which workers commit how far they are, for "
        "dashboards of lag: `hindcast.` makes `hindcast.stock_stats.v1`. Without it nothing is committed",
    )
    pipelines_dir: Path = Field(
        default_factory=_default_pipelines_dir,
        description="folder of the files that declare pipelines, with those below it; default "
        "`include/pipelines` of a checkout, else `pipelines` below the working directory",
    )
    fleet: str = Field(default="default", description="the fleet a worker joins")
    workers: int = Field(default=2, ge=1, le=1000, description="worker slots of the fleet")
    lease_seconds: float = Field(
        default=10.0, ge=1.0, le=3600.0, description="a lease unchanged for this long has expired"
    )
    trigger_seconds: float = Field(
        default=1.0, ge=0.0, description="least time from the start of one batch to the next"
    )
    audit_seconds: float = Field(
        default=10.0, gt=0.0, description="time between two passes that file late and poison rows"
    )
    served_seconds: float = Field(
        default=10.0, gt=0.0, description="time between two looks of a worker at what served tables lack"
    )
    raising_records_per_hour: int = Field(
        default=20,
        ge=0,
        description="records an hour and shard that are left out because the pipeline's function raises on "
        "them; with more the shard stops, with 0 it tries again and again",
    )
    warm_seconds: float = Field(
        default=3600.0, ge=0.0, description="how long the old version is kept warm after a promotion"
    )
    sink_log_hours: float = Field(
        default=12.0,
        ge=1.0,
        description="for so long every reader finds the versions of a sink; of a sink on a local disk older "
        "ones move to a log of their own, which rewinds and verdicts read",
    )
    history_days: float = Field(
        default=90.0,
        ge=1.0,
        description="for so long events, samples of differences and pages of expectations are kept",
    )
    letter_days: float = Field(
        default=365.0,
        ge=1.0,
        description="for so long late rows and dead letters have their keys, values and tracebacks; their "
        "places stay",
    )
    lag_limit_records: int = Field(
        default=100_000, ge=1, description="the supervisor wakes when a shard lags by more"
    )
    spark_master: str = Field(default="local[2]", description="Spark master of workers and replays")
    spark_driver_memory: str = Field(
        default="640m", pattern=r"^\d+[mg]$", description="heap of each Spark driver"
    )
    spark_conf: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="JSON object of more settings of Spark. Those on which results rest are refused; "
        "`spark.hadoop.*` may hold secrets, the others stand in the driver's command line",
        repr=False,
    )
    jars_dir: Path | None = Field(default=None, description="Spark's extra jars; default HOME/jars/spark")
    replay_schedule: str = Field(
        default="0 * * * *", description="cron, in UTC, of the replay DAGs: one hindcast a data interval"
    )
    correct_schedule: str = Field(
        default="0 * * * *",
        description="cron, in UTC, of the DAGs that correct windows for which late rows came",
    )
    archive_schedule: str = Field(
        default="30 * * * *",
        description="cron, in UTC, of the DAG that archives topics; stay within retention",
    )
    schedule_spread_seconds: float = Field(
        default=3600.0,
        ge=0.0,
        description="scheduled replays start up to so long after their interval, "
        "each pipeline at its own delay",
    )
    dag_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]*$",
        description="what the ids of the DAGs begin with, such as `hindcast.`, in an Airflow that has others",
    )
    spark_pool: str = Field(
        default="hindcast_spark",
        description="Airflow's pool whose slots Spark drivers take; `hindcast up` makes it",
    )
    replay_wait_seconds: float = Field(
        default=7200.0,
        ge=0.0,
        description="how long a replay in Airflow waits for a stream that has not read its range yet",
    )
    inherited_variables: str = Field(
        default="",
        description="names, comma-separated, of more variables that workers and replays get from what starts "
        "them; those of object stores, Spark, Kerberos, certificates and proxies they get anyway",
    )
    airflow_url: str = Field(default="", description="address of Airflow's API server, for links")

    def __init__(self, **values: Any) -> None:
        problems = _misspelt()
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems += _wrong(error)
        except json.JSONDecodeError as error:
            file = default_home() / SETTINGS_FILE
            problems.append(f"{file} is not JSON: {error}. Correct it, or let `hindcast up` write it again.")
        if problems:
            listed = "".join(f"\n- {problem}" for problem in problems)
            # Not from pydantic's error: its text would show secrets.
            raise SettingsRefusedError(count=len(problems), problems=listed)

    @field_validator("storage_options", "schema_registry", "spark_conf", mode="before")
    @classmethod
    def _options_are_json(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("it is not JSON") from None

    @field_validator("home")
    @classmethod
    def _home_is_absolute(cls, value: Path) -> Path:
        return value.resolve()  # children run in another folder

    @field_validator("fleet")
    @classmethod
    def _fleet_is_a_name(cls, value: str) -> str:
        try:
            return check_name("fleet", value)
        except BadNameError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Source,
        env_settings: Source,
        dotenv_settings: Source,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: Source,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[Source, ...]:
        """Arguments, then variables, then the settings file."""
        file = JsonConfigSettingsSource(settings_cls, json_file=default_home() / SETTINGS_FILE)
        return init_settings, env_settings, file

    def table(self, *parts: str) -> str:
        """The URL of a table, e.g. ``table("control", "leases")`` or ``table("sinks", "stock_stats")``."""
        root = self.tables_url or str(self.home / "tables")
        return _below(root, "table", parts)

    def sink(self, pipeline: Pipeline) -> str:
        """The URL of the table of a pipeline's results."""
        return pipeline.sink.url or self.table("sinks", pipeline.sink.name)

    def served(self, pipeline: Pipeline) -> str:
        """The URL of the table of what readers get of a pipeline, if it has one."""
        served = pipeline.sink.served
        if served is not None and served.url:
            return served.url
        return self.table("served", pipeline.name)

    def checkpoint(self, *parts: str) -> str:
        """The URL of a Spark checkpoint folder."""
        root = self.checkpoints_url or str(self.home / "checkpoints")
        return _below(root, "checkpoint", parts)

    def scratch(self) -> str:
        """The URL of the folder that driver and executors of a cluster share for the files of one job."""
        if self.scratch_url:
            return self.scratch_url.rstrip("/")
        shared = self.checkpoints_url or str(self.home)
        return shared.rstrip("/") + "/hindcast-scratch"

    @property
    def spark_jars_dir(self) -> Path:
        return self.jars_dir or self.home / "jars" / "spark"

    @property
    def s3_jars_dir(self) -> Path:
        """What Spark needs to read and write S3, beside its other jars."""
        return self.spark_jars_dir.parent / "s3"

    @property
    def uses_s3(self) -> bool:
        """Whether tables, checkpoints or shared files stand in S3, or options say how to reach it."""
        roots = (self.tables_url, self.checkpoints_url, self.scratch_url)
        options = [name.lower() for name in self.storage_options]
        return any(root.startswith(S3) for root in roots) or any(name.startswith("aws_") for name in options)

    @property
    def logs_dir(self) -> Path:
        return self.home / "logs"

    def dag_id(self, name: str, of: str = "") -> str:
        """The id of one of Hindcast's DAGs, such as ``supervise`` or the ``replay`` of a pipeline."""
        if of:
            name = f"{name}.{of}"
        return self.dag_prefix + name

    def environment(self) -> dict[str, str]:
        """The variables that give a child process these same settings and the library on its path.

        ``MALLOC_ARENA_MAX`` keeps glibc from reserving an arena for each of a JVM's many threads.
        """
        variables = {}
        for name, value in self.model_dump(mode="json").items():
            if value not in (None, ""):
                variables[_variable(name)] = _as_text(value)
        variables["PYTHONPATH"] = _python_path()
        variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        variables["PYSPARK_DRIVER_PYTHON"] = sys.executable
        variables["GX_ANALYTICS_ENABLED"] = "false"
        variables["MALLOC_ARENA_MAX"] = "2"
        return variables


def _below(root: str, what: str, parts: tuple[str, ...]) -> str:
    """:raises BadNameError: if a part is not a valid name of ``what``"""
    names = [check_name(what, part) for part in parts]
    return "/".join([root.rstrip("/"), *names])


def _variable(setting: str) -> str:
    return f"{PREFIX}{setting.upper()}"


def _misspelt() -> list[str]:
    """A problem for each variable whose name is nearly that of a setting: its value would have no effect."""
    problems = []
    for variable in sorted(os.environ):
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in Settings.model_fields:
            continue
        close = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=_ALIKE)
        if close:
            cure = f"Write {_variable(close[0])}, or remove the variable"
            problems.append(f"{variable}: there is no such setting. {cure}")
    return problems


def _wrong(error: ValidationError) -> list[str]:
    """A problem for each setting with an invalid value; values of secrets are left out."""
    problems = []
    for found in error.errors(include_url=False):
        name = str(found["loc"][0])
        setting = Settings.model_fields[name]
        variable = _variable(name)
        source = variable
        if variable not in os.environ:
            source = f"{name} ({variable}, or in {default_home() / SETTINGS_FILE})"
        if name not in SECRET:
            source += f"={found['input']}"
        message = found["msg"].removeprefix("Value error, ")
        meaning = setting.description or name
        problems.append(f"{source}: {message}. {meaning}. Write e.g. {variable}={_example(name)}")
    return problems


def _example(name: str) -> str:
    """A valid value of the setting."""
    if name == "storage_options":
        return '{"region": "eu-west-1"}'
    if name == "schema_registry":
        return '{"url": "https://registry:8081"}'
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    return _as_text(default)


def _as_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)
