"""Replay a range, judge it, and let readers have its answer.

:mod:`hindcast.apps.replay` as a file, for ``spark-submit``.
"""

from hindcast.apps.replay import run

if __name__ == "__main__":
    run()
