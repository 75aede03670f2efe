"""The environment of the processes that Hindcast starts.

They get what they need by name, never all of the starter's: a worker is not part of its launcher's Airflow,
and has no business with its database or its keys.
"""

from __future__ import annotations

import os

from hindcast.settings import Settings

#: What every program needs.
BASIC = ("PATH", "HOME", "USER", "JAVA_HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
#: Of object stores, Spark and its cluster, Kerberos and certificates.
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "KRB5", "SPARK_", "SSL_", "YARN_")
#: Of proxies; programs read these in either case.
SUFFIX = "_PROXY"


def basic_environment() -> dict[str, str]:
    """For a program that reads no table and runs no Spark."""
    return {name: os.environ[name] for name in BASIC if name in os.environ}


def child_environment(settings: Settings) -> dict[str, str]:
    """For a program of Hindcast's: these settings, and what leads to stores, Spark and the network.

    ``settings.inherited_variables`` names more. What the settings say comes before what is inherited.
    """
    own = settings.environment()
    found = basic_environment()
    named = {name.strip() for name in settings.inherited_variables.split(",")}
    for name, value in os.environ.items():
        if name in named or name.startswith(PREFIXES) or name.upper().endswith(SUFFIX):
            found[name] = value
    return found | own
