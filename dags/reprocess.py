"""Airflow reprocesses: one DAG `reprocess.<pipeline>` for each pipeline that loads. Those that do not are shown by refused.py."""

from hindcast.airflow.dags import reprocess_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
found = load(settings.pipelines_dir)
for name in found:
    globals()[f"reprocess_{name}"] = reprocess_dag(name, found.versions(name), settings.warm_seconds)
