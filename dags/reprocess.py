"""One DAG `reprocess.<pipeline>` for each pipeline that loads.

load_errors.py shows those that do not load.
"""

from hindcast.airflow.dags import reprocess_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
found = load(settings.pipelines_dir)
for name in found:
    versions = found.versions(name)
    globals()[f"reprocess_{name}"] = reprocess_dag(name, versions, settings.warm_seconds)
