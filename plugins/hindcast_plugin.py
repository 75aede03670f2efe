"""The one file that Airflow loads from here; a second one would become a top-level module of every Airflow process."""

from hindcast.airflow.plugin import HindcastPlugin

__all__ = ["HindcastPlugin"]
