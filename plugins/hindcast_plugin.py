"""The one plugin that Airflow loads from here.

An installed package is found by its entry point, and Airflow calls a second plugin of the same name an error.
So this file is for a package that stands on Python's path alone.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="hindcast"):
    from hindcast.airflow.plugin import HindcastPlugin

    __all__ = ["HindcastPlugin"]
