"""What Kafka's own consumer costs, which only counts bytes: no side can read a topic for less."""

from __future__ import annotations

import resource
import subprocess

from hindcast.settings import Settings
from hindcast_sandbox import broker

_CLASS = "org.apache.kafka.tools.ConsumerPerformance"
#: The first run reads so small a part: what it costs is the start of a JVM, which is left out.
_FEW = 20


def rows_per_cpu_second(settings: Settings, topic: str, rows: int) -> float:
    """Rows of the topic for each second of the consumer's CPU, from the second to the last of them.

    :param rows: that the topic has
    """
    few = rows // _FEW
    return (rows - few) / (_cpu_seconds(settings, topic, rows) - _cpu_seconds(settings, topic, few))


def _cpu_seconds(settings: Settings, topic: str, rows: int) -> float:
    jars = broker.kafka_jars_dir(settings) / "*"
    arguments = [broker.java(), "-Xmx256m", "-cp", str(jars), _CLASS]
    arguments += ["--bootstrap-server", settings.bootstrap_servers]
    arguments += ["--topic", topic, "--num-records", str(rows)]
    before = _children()
    subprocess.run(arguments, check=True, capture_output=True)
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
