"""Where things are and how fast they turn: read from ``HINDCAST_*`` variables, else from ``$HINDCAST_HOME/settings.json``.

``hindcast up`` writes that file, so that every later command finds the embedded broker and tables without a variable.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, JsonConfigSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from hindcast.errors import BadNameError, SettingsRefusedError
from hindcast.pipeline import check_name

SETTINGS_FILE = "settings.json"
PREFIX = "HINDCAST_"
#: How alike the name of a variable and that of a setting are, at least, for the one to be a slip of the other; 1 is the same.
_ALIKE = 0.85
#: What is never shown, not even in an error.
_SECRET = frozenset({"storage_options"})


def default_home() -> Path:
    """The folder of all that Hindcast keeps locally: ``$HINDCAST_HOME``, else ``.hindcast`` below the working directory."""
    return Path(os.environ.get("HINDCAST_HOME", ".hindcast")).resolve()


def project_root() -> Path:
    """The checkout: the folder that holds ``include/hindcast``."""
    return Path(__file__).resolve().parents[2]


class Settings(BaseSettings):
    """All settings. Durations are in seconds; every path may be a URL of a store that deltalake and Spark both know.

    :raises SettingsRefusedError: lists all that are wrong, each with where it was set and a valid form
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    home: Path = Field(default_factory=default_home, description="local folder of logs, jars, broker and Airflow data")
    tables_url: str = Field(default="", description="root of control tables, sinks and hindcasts; default HOME/tables")
    checkpoints_url: str = Field(default="", description="root of Spark checkpoints; default HOME/checkpoints")
    scratch_url: str = Field(
        default="",
        description="root of short-lived files that driver and executors of a Spark cluster share; default HOME/hindcast-scratch",
    )
    storage_options: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict, description="deltalake options of an object store", repr=False
    )
    bootstrap_servers: str = Field(default="127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated")
    pipelines_dir: Path = Field(default_factory=lambda: project_root() / "include" / "pipelines")
    fleet: str = Field(default="default", description="the fleet a worker joins")
    workers: int = Field(default=2, ge=1, le=1000, description="worker slots of the fleet")
    lease_seconds: float = Field(default=10.0, ge=1.0, le=3600.0, description="a lease unchanged for this long has expired")
    trigger_seconds: float = Field(default=1.0, ge=0.0, description="least time from the start of one batch to the next")
    audit_seconds: float = Field(default=10.0, gt=0.0, description="time between two passes that file late and poison rows")
    warm_seconds: float = Field(default=3600.0, ge=0.0, description="how long the old version is kept warm after a promotion")
    lag_limit_records: int = Field(default=100_000, ge=1, description="the supervisor wakes when a shard lags by more")
    spark_master: str = Field(default="local[2]", description="Spark master of workers and replays")
    spark_driver_memory: str = Field(default="640m", pattern=r"^\d+[mg]$", description="heap of each Spark driver")
    jars_dir: Path | None = Field(default=None, description="Spark's extra jars; default HOME/jars/spark")
    replay_schedule: str = Field(default="0 * * * *", description="cron, in UTC, of the replay DAGs: one hindcast a data interval")
    correct_schedule: str = Field(
        default="0 * * * *", description="cron, in UTC, of the DAGs that correct windows for which late rows came"
    )
    archive_schedule: str = Field(default="30 * * * *", description="cron, in UTC, of the DAG that archives topics; stay within retention")
    schedule_spread_seconds: float = Field(
        default=3600.0, ge=0.0, description="scheduled replays start up to so long after their interval, each pipeline at its own delay"
    )
    spark_pool: str = Field(default="hindcast_spark", description="Airflow's pool whose slots Spark drivers take; `hindcast up` makes it")
    replay_wait_seconds: float = Field(
        default=7200.0, ge=0.0, description="how long a replay in Airflow waits for a stream that has not read its range yet"
    )
    airflow_url: str = Field(default="", description="address of Airflow's API server, for links")

    def __init__(self, **values: Any) -> None:
        problems = _misspelt()
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems += _wrong(error)
        except json.JSONDecodeError as error:
            problems.append(f"{default_home() / SETTINGS_FILE} is not JSON: {error}. Mend it, or let `hindcast up` write it again.")
        if problems:
            # Not from pydantic's error: its text would show secrets.
            raise SettingsRefusedError(count=len(problems), problems="".join(f"\n- {problem}" for problem in problems))

    @field_validator("storage_options", mode="before")
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
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then variables, then the settings file."""
        return init_settings, env_settings, JsonConfigSettingsSource(settings_cls, json_file=default_home() / SETTINGS_FILE)

    def table(self, *parts: str) -> str:
        """The URL of a table, e.g. ``table("control", "leases")`` or ``table("sinks", "stock_stats")``."""
        root = self.tables_url or str(self.home / "tables")
        return "/".join([root.rstrip("/"), *(check_name("table", part) for part in parts)])

    def checkpoint(self, *parts: str) -> str:
        """The URL of a Spark checkpoint folder."""
        root = self.checkpoints_url or str(self.home / "checkpoints")
        return "/".join([root.rstrip("/"), *(check_name("checkpoint", part) for part in parts)])

    def scratch(self) -> str:
        """The URL of the folder that driver and executors of a cluster share for the files of one job."""
        root = self.scratch_url or f"{self.checkpoints_url or self.home}".rstrip("/") + "/hindcast-scratch"
        return root.rstrip("/")

    @property
    def spark_jars_dir(self) -> Path:
        return self.jars_dir or self.home / "jars" / "spark"

    @property
    def logs_dir(self) -> Path:
        return self.home / "logs"

    def environment(self) -> dict[str, str]:
        """The variables that give a child process these same settings and the library on its path.

        ``MALLOC_ARENA_MAX`` keeps glibc from reserving an arena for each of a JVM's many threads.
        """
        include = str(project_root() / "include")
        own = {
            f"{PREFIX}{name.upper()}": _as_text(value) for name, value in self.model_dump(mode="json").items() if value not in (None, "")
        }
        return {
            **own,
            "PYTHONPATH": include,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "GX_ANALYTICS_ENABLED": "false",
            "MALLOC_ARENA_MAX": "2",
        }


def _misspelt() -> list[str]:
    """The variables whose names are nearly those of settings: without a word their values would have no effect."""
    problems = []
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in Settings.model_fields:
            continue
        meant = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=_ALIKE)
        if meant:
            problems.append(f"{variable}: there is no such setting. Write {PREFIX}{meant[0].upper()}, or remove the variable")
    return problems


def _wrong(error: ValidationError) -> list[str]:
    """What is wrong with the values of settings, without those of secrets."""
    problems = []
    for one in error.errors(include_url=False):
        name = str(one["loc"][0])
        setting = Settings.model_fields[name]
        variable = f"{PREFIX}{name.upper()}"
        said = variable if variable in os.environ else f"{name} ({variable}, or in {default_home() / SETTINGS_FILE})"
        if name not in _SECRET:
            said += f"={one['input']}"
        default = setting.get_default(call_default_factory=True)
        form = '{"region": "eu-west-1"}' if name == "storage_options" else _as_text(default)
        problems.append(f"{said}: {one['msg'].removeprefix('Value error, ')}. {setting.description or name}. Write e.g. {variable}={form}")
    return problems


def _as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
