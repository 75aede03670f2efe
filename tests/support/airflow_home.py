"""Import this before anything of Airflow: Airflow reads its home once, at import, and must not find a
developer's own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if "HINDCAST_TEST_AIRFLOW_HOME" not in os.environ:
    folder = tempfile.mkdtemp(prefix="hindcast-airflow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["HINDCAST_TEST_AIRFLOW_HOME"] = os.environ["AIRFLOW_HOME"] = folder
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(Path(__file__).resolve().parents[2] / "plugins")
    os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
    os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = (
        "a-secret-of-this-test-run-and-of-no-other-that-is-long-enough-for-hs512"
    )
