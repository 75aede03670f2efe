"""Airflow corrects: one DAG `correct.<pipeline>` for each pipeline of which a version has the policy to give readers the batch's answer for
late windows. A run is for the version that is active then.
"""

from hindcast import Policy
from hindcast.airflow.dags import correct_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
for name in sorted({pipeline.name for pipeline in load(settings.pipelines_dir).every() if pipeline.policy is Policy.CORRECT}):
    globals()[f"correct_{name}"] = correct_dag(name, settings.correct_schedule)
