"""The DAGs of the pipelines that load. load_errors.py shows those that do not."""

from hindcast.airflow import generate_pipeline_dags

generate_pipeline_dags(globals())
