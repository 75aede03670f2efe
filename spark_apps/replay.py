"""Replay a range, judge it, and let readers have its answer.

:mod:`hindcast.apps.replay` as a file, for ``spark-submit``.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("hindcast.apps.replay", run_name="__main__")
