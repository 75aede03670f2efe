"""An Airflow of this home: SQLite, LocalExecutor, everything on loopback, as four services.

What ``airflow standalone`` starts, without its parent: that one leaves its components behind on SIGTERM,
costs a process more, and its scheduler and triggerer serve their logs on all interfaces. Here each
component has its own record and log, and task logs are read from the disk that all of them share.
"""

from __future__ import annotations

import base64
import configparser
import http.client
import io
import json
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import structlog

from hindcast.errors import PrerequisiteError, ServiceError
from hindcast.processes.background_services import Service, Services, last_lines
from hindcast.processes.detach import write_atomically
from hindcast.processes.environment import child_environment
from hindcast.settings import Settings, project_root
from hindcast_sandbox.ports import kept_ports

PREFIX = "airflow-"
#: The cure where Airflow is not there.
INSTALL = "Install the package with its extra `airflow`; in a checkout, run `make env`."
COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
#: The names under which Airflow reports the health of its components.
_HEALTHS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
READY_SECONDS = 180.0
STOP_SECONDS = 20.0
_MIGRATE_SECONDS = 180.0
#: How soon a DAG file that was added or changed is seen.
_REFRESH_SECONDS = 15
#: How soon a pipeline that was added or changed is seen: its DAGs come from files that have not changed
#: themselves. Reading one of them again takes more than a second of CPU, so every 15 s it took most of a
#: core, all day.
_PARSE_SECONDS = 60
_PARALLELISM = 4
#: How long a writer waits for another one: five services and every task share one SQLite, and its own 5 s
#: are not enough on busy cores.
_LOCKED_SECONDS = 60
#: Of a Spark driver beside its heap: the JVM's own memory, its Python and the Python workers.
_BESIDE_HEAP_MIB = 900
#: What every process of Airflow's runs as it starts.
_LOCAL_SETTINGS = """from hindcast_sandbox import sqlite

sqlite.lock_before_savepoints()
sqlite.write_audit_rows_beside_the_event_loop()
"""
ADMIN = "admin"
#: In the error of a :func:`request` for what is not there.
NOT_FOUND = "with 404"
SECRET = 0o600

_log = structlog.get_logger(__name__)


def home(settings: Settings) -> Path:
    """``AIRFLOW_HOME``."""
    return settings.home / "airflow"


def password_file(settings: Settings) -> Path:
    """The file (mode 0600) of the generated passwords, JSON of user to password."""
    return home(settings) / "passwords.json"


def url(settings: Settings) -> str:
    """The address of the API server and of the pages; the same over restarts while its port is free."""
    port = json.loads((home(settings) / "ports.json").read_text())["api"]
    return f"http://127.0.0.1:{port}"


def environment(settings: Settings) -> dict[str, str]:
    """The variables under which any ``airflow`` command acts on this Airflow."""
    own = {**child_environment(settings), "AIRFLOW_HOME": str(home(settings))}
    return {
        **own,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)]),
        "NO_COLOR": "1",
    }


def executable() -> str:
    """The ``airflow`` of this Python's own environment.

    :raises PrerequisiteError: where there is none
    """
    found = Path(sys.executable).with_name("airflow")
    if not found.exists():
        raise PrerequisiteError(what="Airflow", problem=f"there is no {found}", cure=INSTALL)
    return str(found)


def _dags_folder(home: Path) -> Path:
    """The checkout's folder of DAG files. An installed package has none: then one with a file that generates
    them.
    """
    own = project_root() / "dags"
    if own.is_dir():
        return own
    made = home / "dags"
    made.mkdir(exist_ok=True)
    for name in ("fleet", "pipeline"):
        generate = f"generate_{name}_dags"
        code = f"from hindcast.airflow import {generate}\n\n{generate}(globals())\n"
        write_atomically(made / f"{name}_dags.py", code)
    check = "from hindcast.airflow import check_pipelines\n\ncheck_pipelines()  # holds no dag\n"
    write_atomically(made / "load_errors.py", check)
    return made


def _plugins_folder(home: Path) -> Path:
    """The checkout's folder of plugins. Of an installed package Airflow learns by its entry point."""
    own = project_root() / "plugins"
    if own.is_dir():
        return own
    return home / "plugins"


def prepare(settings: Settings, *, dags: Path | None = None) -> Settings:
    """Write ``airflow.cfg`` and what is secret; returns the settings with Airflow's address. Secrets are
    made once and kept.
    """
    folder = home(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _running(settings):
        kept_ports(folder / "ports.json", ("api",))
    address = url(settings)
    kept = _secrets(folder)
    if not password_file(settings).exists():
        write_atomically(
            password_file(settings), json.dumps({ADMIN: secrets.token_urlsafe(16)}) + "\n", SECRET
        )
    values: dict[str, dict[str, Any]] = {
        "core": {
            "dags_folder": dags or _dags_folder(folder),
            "plugins_folder": _plugins_folder(folder),
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": _PARALLELISM,
            "max_active_tasks_per_dag": _PARALLELISM,
            "dags_are_paused_at_creation": True,
            "fernet_key": kept["fernet_key"],
            "simple_auth_manager_users": f"{ADMIN}:admin",
            "simple_auth_manager_passwords_file": password_file(settings),
            "execution_api_server_url": f"{address}/execution/",
            "hostname_callable": "socket.gethostname",  # the default asks the name server
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{folder / 'airflow.db'}?timeout={_LOCKED_SECONDS}"},
        "api": {
            "host": "127.0.0.1",
            "port": address.rpartition(":")[2],
            "base_url": address,
            "workers": 1,
            "secret_key": kept["secret_key"],
        },
        "api_auth": {"jwt_secret": kept["jwt_secret"]},
        "dag_processor": {
            "refresh_interval": _REFRESH_SECONDS,
            "min_file_process_interval": _PARSE_SECONDS,
            "parsing_processes": 1,
        },
        "logging": {
            "base_log_folder": settings.logs_dir / "airflow",
            "dag_processor_child_process_log_directory": settings.logs_dir / "airflow" / "dag_processor",
        },
        "usage_data_collection": {"enabled": False},
    }
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(
        {
            section: {key: str(value).replace("%", "%%") for key, value in options.items()}
            for section, options in values.items()
        }
    )
    text = io.StringIO()
    parser.write(text)
    write_atomically(folder / "airflow.cfg", text.getvalue(), SECRET)
    (folder / "config").mkdir(exist_ok=True)
    write_atomically(folder / "config" / "airflow_local_settings.py", _LOCAL_SETTINGS)
    return settings.model_copy(update={"airflow_url": address})


def start(settings: Settings, *, dags: Path | None = None, ready_seconds: float = READY_SECONDS) -> Settings:
    """Start what does not run yet of this home's Airflow and wait until it is healthy; returns the settings
    with its address.

    :param dags: another folder of DAG files than the checkout's
    :raises ServiceError: where it does not become healthy in time; names the component and its log
    """
    began = time.monotonic()
    settings = prepare(settings, dags=dags)
    _migrate(settings)
    services = Services(settings.home)
    port = int(settings.airflow_url.rpartition(":")[2])
    for component, options in COMPONENTS.items():
        known = services.find(PREFIX + component)
        if not (known and known.running):
            ports = {"api": port} if component == "api-server" else {}
            services.start(
                PREFIX + component, [executable(), component, *options], environment(settings), ports=ports
            )
    _wait_healthy(settings, ready_seconds)
    _make_pool(settings)
    _log.info("Airflow is healthy.", address=settings.airflow_url, seconds=round(time.monotonic() - began, 1))
    return settings


def stop(settings: Settings) -> bool:
    """Stop all components; the database stays. True where there was one to stop."""
    services = Services(settings.home)
    found = components(settings)
    # The scheduler first: it starts tasks, and tasks start workers. The API server last: ending tasks
    # report to it.
    for component in ("scheduler", "triggerer", "dag-processor", "api-server"):
        for service in found:
            if service.name == PREFIX + component:
                services.stop(service, grace_seconds=STOP_SECONDS)
    return bool(found)


def components(settings: Settings) -> list[Service]:
    """The recorded components, running or ended."""
    return [service for service in Services(settings.home).all() if service.name.startswith(PREFIX)]


def health(settings: Settings) -> dict[str, str]:
    """The status of each component as Airflow itself reports it; empty where the API server does not
    answer.
    """
    try:
        answer = request(settings.airflow_url, "GET", "/api/v2/monitor/health")
    except ServiceError:
        return {}
    return {name: str((answer.get(name) or {}).get("status")) for name in _HEALTHS}


def request(address: str, method: str, path: str, body: Any = None, token: str = "") -> Any:
    """One call of Airflow's REST API; returns the decoded JSON.

    :param address: ``http://host:port``
    :raises ServiceError: where there is no answer, or it is not a success
    """
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    try:
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(
            service="airflow", problem=f"did not answer {method} {path}: {error}", log=address
        ) from error
    finally:
        connection.close()
    if response.status >= http.client.BAD_REQUEST:
        said = content.decode("utf-8", "replace")[:500]
        problem = f"answered {method} {path} with {response.status}: {said}"
        raise ServiceError(service="airflow", problem=problem, log=address)
    return json.loads(content) if content else None


def login(settings: Settings) -> str:
    """A token of the administrator for :func:`request`."""
    password = json.loads(password_file(settings).read_text())[ADMIN]
    return str(
        request(settings.airflow_url, "POST", "/auth/token", {"username": ADMIN, "password": password})[
            "access_token"
        ]
    )


def spark_drivers(settings: Settings, cores: int, memory_mib: int) -> int:
    """How many Spark drivers the machine has room for beside its streams: each in cores of its own, all in
    half of the memory.
    """
    cores_each = 1
    if threads := re.fullmatch(r"local\[(\d+|\*)\]", settings.spark_master):
        cores_each = cores if threads[1] == "*" else int(threads[1])
    unit = {"m": 1, "g": 1024}[settings.spark_driver_memory[-1]]
    driver_mib = int(settings.spark_driver_memory[:-1]) * unit + _BESIDE_HEAP_MIB
    return max(min(cores // cores_each, memory_mib // 2 // driver_mib), 1)


def _make_pool(settings: Settings) -> None:
    """Make the pool of Spark drivers. One that is there stays as it is: a person may have given it other
    slots.
    """
    token = login(settings)
    known = request(settings.airflow_url, "GET", "/api/v2/pools?limit=1000", token=token)["pools"]
    if any(pool["name"] == settings.spark_pool for pool in known):
        return
    slots = spark_drivers(settings, os.cpu_count() or 1, psutil.virtual_memory().total // 2**20)
    pool = {
        "name": settings.spark_pool,
        "slots": slots,
        "description": "Spark drivers of replays and verdicts at once",
        "include_deferred": False,
    }
    try:
        request(settings.airflow_url, "POST", "/api/v2/pools", pool, token)
    except ServiceError as error:
        if "with 409" not in str(error):  # it was made at the same moment
            raise
    _log.info("Made the pool of Spark drivers.", pool=settings.spark_pool, slots=slots)


def _running(settings: Settings) -> bool:
    return any(service.running for service in components(settings))


def _secrets(folder: Path) -> dict[str, str]:
    file = folder / "secrets.json"
    if not file.exists():
        made = {
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "jwt_secret": secrets.token_urlsafe(48),
            "secret_key": secrets.token_urlsafe(32),
        }
        write_atomically(file, json.dumps(made), SECRET)
    kept: dict[str, str] = json.loads(file.read_text())
    return kept


def _migrate(settings: Settings) -> None:
    """Bring the database to this Airflow's version; a no-op of a few seconds where it is."""
    if _running(settings):
        return
    log = settings.logs_dir / "airflow-db.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        try:
            code = subprocess.run(
                [executable(), "db", "migrate"],
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_MIGRATE_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise ServiceError(
                service="airflow",
                problem=f"did not prepare its database within {_MIGRATE_SECONDS:.0f} s",
                log=log,
            ) from error
    if code != 0:
        raise ServiceError(
            service="airflow",
            problem=f"could not prepare its database. Its last lines:\n{last_lines(log)}\n",
            log=log,
        )


def _wait_healthy(settings: Settings, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    seen: dict[str, str] = {}
    while time.monotonic() < deadline:
        for service in components(settings):
            if not service.running:
                raise ServiceError(
                    service=service.name,
                    problem=f"ended while it was starting. Its last lines:\n{last_lines(service.log)}\n",
                    log=service.log,
                )
        seen = health(settings)
        if seen and set(seen.values()) == {"healthy"}:
            return
        time.sleep(0.5)
    raise ServiceError(
        service="airflow",
        problem=f"was not healthy within {timeout_seconds:.0f} s: {seen or 'the API server does not answer'}",
        log=settings.logs_dir,
    )
