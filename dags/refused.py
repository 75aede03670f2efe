"""Shows in Airflow which pipelines were refused, as the import error of this file. It holds no DAG, so no DAG is lost by it.

An error raised in replay.py would take the DAGs of the good pipelines down with it.
"""

from hindcast.catalog import load
from hindcast.errors import PipelinesRefusedError
from hindcast.settings import Settings

if errors := load(Settings().pipelines_dir).errors:
    raise PipelinesRefusedError(count=len(errors), problems="\n".join(str(error) for error in errors.values()))
