"""The schedules that a demo started. They end with it, so that its replays do not compete with the next
one's.

``HOME/demo-dags.json`` names them; the folder ``run`` holds records of processes alone. A DAG that was
unpaused before a demo is not among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from hindcast.errors import ServiceError
from hindcast.processes.detach import write_atomically
from hindcast.settings import Settings
from hindcast_sandbox import airflow

Say = Callable[[str], None]


def remember(settings: Settings, dags: Iterable[str]) -> None:
    """Keep the names of DAGs that a demo is about to unpause."""
    known = {*_remembered(settings), *dags}
    write_atomically(_file(settings), json.dumps(sorted(known)) + "\n")


def pause_remembered(settings: Settings, say: Say) -> None:
    """Pause what earlier demos unpaused. If Airflow does not answer, the next call tries again."""
    dags = _remembered(settings)
    if not dags:
        return
    if not any(component.running for component in airflow.components(settings)):
        return
    try:
        token = airflow.login(settings)
    except (ServiceError, OSError) as error:
        say(f"The demo's schedules ({', '.join(dags)}) are not paused yet: {error}")
        return
    left = [dag for dag in dags if not _pause(settings, dag, token)]
    if left:
        say(f"Airflow did not pause {', '.join(left)}; the next demo or `hindcast down` tries again.")
        write_atomically(_file(settings), json.dumps(left) + "\n")
        return
    _file(settings).unlink(missing_ok=True)
    say(f"Paused the schedules that a demo started: {', '.join(dags)}.")


def _pause(settings: Settings, dag: str, token: str) -> bool:
    """Whether the DAG is paused now, or is no more: a pipeline that was removed has no schedule."""
    try:
        airflow.request(settings.airflow_url, "PATCH", f"/api/v2/dags/{dag}", {"is_paused": True}, token)
    except ServiceError as error:
        return airflow.NOT_FOUND in str(error)
    return True


def _remembered(settings: Settings) -> list[str]:
    try:
        return list(json.loads(_file(settings).read_text()))
    except FileNotFoundError:
        return []


def _file(settings: Settings) -> Path:
    return settings.home / "demo-dags.json"
