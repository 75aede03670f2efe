"""Airflow measures: the DAG `benchmark`, of the pipelines that pin a `reference=` range. There is none where none does."""

from hindcast.airflow.dags import benchmark_dag
from hindcast.catalog import load
from hindcast.settings import Settings

pinned = sorted(pipeline.name for pipeline in load(Settings().pipelines_dir).values() if pipeline.reference is not None)
if pinned:
    dag = benchmark_dag(pinned)
