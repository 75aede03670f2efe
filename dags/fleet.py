"""The DAGs `supervise` and `maintain`. They load no pipeline, so no pipeline's file can keep them away."""

from hindcast.airflow import generate_fleet_dags

generate_fleet_dags(globals())
