"""Run one worker.

:mod:`hindcast.apps.consume` as a file, for ``spark-submit``.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("hindcast.apps.consume", run_name="__main__")
