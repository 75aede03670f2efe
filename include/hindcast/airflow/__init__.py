"""Airflow's side: DAGs, operators, triggers and the pages of the plugin.

A DAG file of one's own imports from here :func:`generate_dags` and its parts, :func:`check_pipelines`,
:class:`HindcastTaskGroup` and the operators.
"""

from importlib import import_module
from typing import Any

_ROOMS = {
    "ArchiveOperator": "operators",
    "BenchmarkOperator": "operators",
    "CorrectLateOperator": "operators",
    "HindcastReplayOperator": "operators",
    "HindcastTaskGroup": "task_group",
    "MaintainOperator": "operators",
    "ValidateOperator": "operators",
    "check_pipelines": "generate",
    "generate_dags": "generate",
    "generate_fleet_dags": "generate",
    "generate_pipeline_dags": "generate",
}

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    # Every process of Airflow imports the plugin, which is below this package, and few need the operators.
    if name in _ROOMS:
        return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
