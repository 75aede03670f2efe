"""The one plugin that Airflow loads from here.

Airflow would make a second file a top-level module of each of its processes.
"""

from hindcast.airflow.plugin import HindcastPlugin

__all__ = ["HindcastPlugin"]
