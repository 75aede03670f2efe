"""Begin a new version of a pipeline, compare it with the active one, or promote it.

:mod:`hindcast.apps.versions` as a file, for ``spark-submit``.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("hindcast.apps.versions", run_name="__main__")
