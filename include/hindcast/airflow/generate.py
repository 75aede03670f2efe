"""Put Hindcast's DAGs into a DAG file, where Airflow looks for them.

All of it, in a DAG file of three lines::

    from hindcast.airflow import generate_dags

    generate_dags(globals())
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from airflow.sdk import DAG, get_parsing_context

from hindcast.airflow.dags import (
    archive_dag,
    benchmark_dag,
    correct_dag,
    maintain_dag,
    replay_dag,
    reprocess_dag,
    supervise_dag,
    validate_dag,
)
from hindcast.catalog import Catalog, load
from hindcast.pipeline import Policy
from hindcast.settings import Settings

Namespace = MutableMapping[str, Any]


def generate_dags(namespace: Namespace) -> None:
    """Every DAG: those of the fleet and those of the pipelines.

    :param namespace: ``globals()`` of the DAG file
    """
    generate_fleet_dags(namespace)
    generate_pipeline_dags(namespace)


def generate_fleet_dags(namespace: Namespace) -> None:
    """``supervise``, which launches missing workers, and ``maintain``, which keeps the tables small.

    They load no pipeline. In a file of their own they go on whatever the import of a pipeline does.
    """
    for dag in (supervise_dag(), maintain_dag()):
        namespace[_variable(dag)] = dag


def generate_pipeline_dags(namespace: Namespace) -> None:
    """The DAGs of the pipelines that load: ``replay``, ``validate`` and ``reprocess`` of each, ``correct`` of
    those with that policy; ``archive`` and ``benchmark`` if a pipeline asks for them.

    A process that runs one task makes the DAG of that task alone. What does not load is no error here, for an
    error would remove the DAGs of the other pipelines: :func:`check_pipelines` is for that.
    """
    settings = Settings()
    wanted = get_parsing_context().dag_id
    for dag in _pipeline_dags(load(settings.pipelines_dir), settings, wanted):
        namespace[_variable(dag)] = dag


def check_pipelines() -> None:
    """Show in Airflow what does not load, as the import error of the DAG file that calls this.

    :raises PipelinesRefusedError: if a file of pipelines was refused; it lists each with what is wrong
    """
    refused = load(Settings().pipelines_dir).refused()
    if refused:
        raise refused


def _variable(dag: DAG) -> str:
    return str(dag.dag_id).replace(".", "_").replace("-", "_")


def _pipeline_dags(catalog: Catalog, settings: Settings, wanted: str | None) -> Iterator[DAG]:
    """The DAGs of the catalog's pipelines; of all of them the wanted one, if one is."""

    def asked(name: str, of: str = "") -> bool:
        return wanted in {None, settings.dag_id(name, of)}

    for name, pipeline in catalog.items():
        if asked("replay", name):
            yield replay_dag(pipeline, settings.replay_schedule)
        if asked("validate", name):
            yield validate_dag(pipeline)
        if not pipeline.is_foreign and asked("reprocess", name):
            yield reprocess_dag(name, catalog.versions(name), settings.warm_seconds)
    # Each for a name of which any version asks for it: a run is for the version that is active then.
    declared = catalog.every()
    for name in sorted({pipeline.name for pipeline in declared if pipeline.policy is Policy.CORRECT}):
        if asked("correct", name):
            yield correct_dag(name, settings.correct_schedule)
    topics = {topic.name for pipeline in declared for topic in pipeline.topics if topic.archive}
    if topics and asked("archive"):
        yield archive_dag(sorted(topics), settings.archive_schedule)
    pinned = {pipeline.name for pipeline in declared if pipeline.reference is not None}
    if pinned and asked("benchmark"):
        yield benchmark_dag(sorted(pinned))
