"""The DAG `benchmark`, for the pipelines of which a version pins a `reference=` range.

There is no DAG if no version pins one. A run replays the range of the version that is active then.
"""

from hindcast.airflow.dags import benchmark_dag
from hindcast.catalog import load
from hindcast.settings import Settings

declared = load(Settings().pipelines_dir).every()
pinned = {pipeline.name for pipeline in declared if pipeline.reference is not None}
if pinned:
    dag = benchmark_dag(sorted(pinned))
