"""Run one worker.

:mod:`hindcast.apps.consume` as a file, for ``spark-submit``.
"""

from hindcast.apps.consume import run

if __name__ == "__main__":
    run()
