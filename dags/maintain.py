"""The DAG `maintain`, which keeps the tables small."""

from hindcast.airflow.dags import maintain_dag

dag = maintain_dag()
