"""Airflow's side: DAGs, operators, triggers and the pages of the plugin.

A DAG file of one's own imports from here :func:`generate_dags` and its parts, :func:`check_pipelines`, the
functions that make one DAG, and the operators.
"""

from importlib import import_module
from typing import Any

_ROOMS = {
    "hindcast.airflow.generate": [
        "check_pipelines",
        "generate_dags",
        "generate_fleet_dags",
        "generate_pipeline_dags",
    ],
    "hindcast.airflow.operators": [
        "ArchiveOperator",
        "BenchmarkOperator",
        "CorrectLateOperator",
        "HindcastReplayOperator",
        "MaintainOperator",
        "ValidateOperator",
    ],
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list, of the names above


def __getattr__(name: str) -> Any:
    # Every process of Airflow imports the plugin, which is below this package, and few need the operators.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hindcast.airflow' has no attribute {name!r}")
