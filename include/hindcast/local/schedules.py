"""The schedules that a demo started: they end with it, so that its replays do not compete with the next one's.

Which they are is kept in ``HOME/demo-dags.json``; the folder ``run`` holds records of processes alone. A DAG that was unpaused before a
demo is not among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from hindcast.errors import ServiceError
from hindcast.local import airflow
from hindcast.local.detach import write_atomically
from hindcast.settings import Settings

Say = Callable[[str], None]


def remember(settings: Settings, dags: Iterable[str]) -> None:
    """Keep the names of DAGs that a demo is about to unpause."""
    known = {*_remembered(settings), *dags}
    _file(settings).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_file(settings), json.dumps(sorted(known)) + "\n")


def pause_remembered(settings: Settings, say: Say) -> None:
    """Pause what earlier demos unpaused. An Airflow that does not answer is left alone; the next call tries again."""
    dags = _remembered(settings)
    if not dags or not any(component.running for component in airflow.components(settings)):
        return
    left = []
    try:
        token = airflow.login(settings)
    except (ServiceError, OSError) as error:
        say(f"The demo's schedules ({', '.join(dags)}) are not paused yet: {error}")
        return
    for dag in dags:
        try:
            airflow.request(settings.airflow_url, "PATCH", f"/api/v2/dags/{dag}", {"is_paused": True}, token)
        except ServiceError as error:
            if airflow.NOT_FOUND not in str(error):  # a pipeline that was removed has no schedule any more
                left.append(dag)
    if left:
        say(f"Airflow did not pause {', '.join(left)}; the next demo or `hindcast down` tries again.")
        write_atomically(_file(settings), json.dumps(left) + "\n")
        return
    _file(settings).unlink(missing_ok=True)
    say(f"Paused the schedules that a demo started: {', '.join(dags)}.")


def _remembered(settings: Settings) -> list[str]:
    try:
        return list(json.loads(_file(settings).read_text()))
    except FileNotFoundError:
        return []


def _file(settings: Settings) -> Path:
    return settings.home / "demo-dags.json"
