"""Copy a topic into its archive, or compare the two.

:mod:`hindcast.apps.archive` as a file, for ``spark-submit``.
"""

from hindcast.apps.archive import run

if __name__ == "__main__":
    run()
