"""The DAG `archive`, for the topics that pipelines declare with `archive=True`.

There is no DAG if no topic is declared so.
"""

from hindcast.airflow.dags import archive_dag
from hindcast.catalog import load
from hindcast.settings import Settings

settings = Settings()
topics: set[str] = set()
for pipeline in load(settings.pipelines_dir).every():
    topics.update(topic.name for topic in pipeline.topics if topic.archive)
if topics:
    dag = archive_dag(sorted(topics), settings.archive_schedule)
