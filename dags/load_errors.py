"""Shows in Airflow which pipelines were refused, as the import error of this file. It holds no DAG."""

from hindcast.airflow import check_pipelines

check_pipelines()
