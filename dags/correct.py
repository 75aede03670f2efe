"""One DAG `correct.<pipeline>` for each pipeline of which a version has the policy *correct*.

A run is for the version that is active then.
"""

from hindcast import Policy
from hindcast.airflow.dags import correct_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
declared = load(settings.pipelines_dir).every()
corrected = {pipeline.name for pipeline in declared if pipeline.policy is Policy.CORRECT}
for name in sorted(corrected):
    globals()[f"correct_{name}"] = correct_dag(name, settings.correct_schedule)
