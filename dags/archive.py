"""Airflow archives topics: the DAG `archive`, of the topics that pipelines declare with `archive=True`. There is none where none does."""

from hindcast.airflow.dags import archive_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
pipelines = load(settings.pipelines_dir).every()
topics = sorted({topic.name for pipeline in pipelines for topic in pipeline.topics if topic.archive})
if topics:
    dag = archive_dag(topics, settings.archive_schedule)
