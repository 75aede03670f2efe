"""Copy a topic into its archive, or compare the two.

:mod:`hindcast.apps.archive` as a file, for ``spark-submit``.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("hindcast.apps.archive", run_name="__main__")
