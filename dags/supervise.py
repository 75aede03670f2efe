"""The DAG `supervise`, which launches missing workers."""

from hindcast.airflow.dags import supervise_dag

dag = supervise_dag()
