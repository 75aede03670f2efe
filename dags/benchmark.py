"""Airflow measures: the DAG `benchmark`, of the pipelines of which a version pins a `reference=` range. There is none where none does.

A run replays the range of the version that is active then.
"""

from hindcast.airflow.dags import benchmark_dag
from hindcast.catalog import load
from hindcast.settings import Settings

pinned = sorted({pipeline.name for pipeline in load(Settings().pipelines_dir).every() if pipeline.reference is not None})
if pinned:
    dag = benchmark_dag(pinned)
