"""One DAG `replay.<pipeline>` for each pipeline that loads.

load_errors.py shows those that do not load.
"""

from hindcast.airflow.dags import replay_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
for pipeline in load(settings.pipelines_dir).values():
    globals()[f"replay_{pipeline.name}"] = replay_dag(pipeline, settings.replay_schedule)
