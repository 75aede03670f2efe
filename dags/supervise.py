"""Airflow keeps the fleet whole: the DAG `supervise`."""

from hindcast.airflow.dags import supervise_dag

dag = supervise_dag()
