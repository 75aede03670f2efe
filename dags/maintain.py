"""Airflow keeps the tables small: the DAG `maintain`."""

from hindcast.airflow.dags import maintain_dag

dag = maintain_dag()
