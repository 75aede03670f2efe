"""Shows in Airflow which pipelines were refused, as the import error of this file.

An error raised in replay.py would also remove the DAGs of the good pipelines. This file holds no DAG.
"""

# Airflow reads only files whose text has the words "dag" and "airflow"; no import here brings in the second
# one.
from hindcast.catalog import load
from hindcast.settings import Settings

refused = load(Settings().pipelines_dir).refused()
if refused:
    raise refused
