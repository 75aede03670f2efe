"""Begin a new version of a pipeline, compare it with the active one, or promote it.

:mod:`hindcast.apps.versions` as a file, for ``spark-submit``.
"""

from hindcast.apps.versions import run

if __name__ == "__main__":
    run()
