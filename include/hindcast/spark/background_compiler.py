"""Let the JVM's optimising compiler work in the time that nothing else wants.

A worker lives for weeks, and what that compiler makes is a third cheaper than what the quick one makes. But
in its first minutes it competes with a young JVM's batches for the cores. So its threads give way: the
system runs them when a core is idle. Measured in docs/decisions/0031.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

#: All compiler threads are there from the start. Those that a JVM adds later would have the priority of the
#: thread that adds them.
OPTIONS = "-XX:-UseDynamicNumberOfCompilerThreads"
#: As the system names the threads of the optimising compiler.
_OPTIMISING = "C2 Compiler"
_LEAST_PRIORITY = 19


def give_way(spark: SparkSession) -> None:
    """Have the compiler of the session's driver give way. It must have been started with :data:`OPTIONS`."""
    jvm: Any = spark._jvm
    give_way_in(int(jvm.java.lang.ProcessHandle.current().pid()))


def give_way_in(pid: int) -> None:
    """The same in the JVM with this process id.

    Where the system does not show threads (it is not Linux) the compiler competes as by default.
    """
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            if (thread / "comm").read_text().startswith(_OPTIMISING):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _LEAST_PRIORITY)
