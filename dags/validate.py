"""One DAG `validate.<pipeline>` for each pipeline that loads.

load_errors.py shows those that do not load.
"""

from hindcast.airflow.dags import validate_dag
from hindcast.catalog import load
from hindcast.settings import Settings

for pipeline in load(Settings().pipelines_dir).values():
    globals()[f"validate_{pipeline.name}"] = validate_dag(pipeline)
