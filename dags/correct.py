"""Airflow corrects: one DAG `correct.<pipeline>` for each pipeline whose policy is to give readers the batch's answer for late windows."""

from hindcast import Policy
from hindcast.airflow.dags import correct_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
for pipeline in load(settings.pipelines_dir).values():
    if pipeline.policy is Policy.CORRECT:
        globals()[f"correct_{pipeline.name}"] = correct_dag(pipeline, settings.correct_schedule)
