"""Shows in Airflow which pipelines were refused, as the import error of this file. It holds no DAG, so no DAG is lost by it.

An error raised in replay.py would take the DAGs of the good pipelines down with it.
"""

from hindcast.catalog import load
from hindcast.settings import Settings

if refused := load(Settings().pipelines_dir).refused():
    raise refused
