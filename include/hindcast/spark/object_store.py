"""One set of options of an object store, for deltalake and for Spark alike.

deltalake takes the settings' storage options and variables such as ``AWS_REGION``, and calls the store
``s3://``. Spark reads it through Hadoop's S3A, whose settings have other names
(``org.apache.hadoop.fs.s3a.Constants``). Here the one becomes the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings

_PREFIX = "aws_"
#: Names that deltalake takes for one option, without their prefix: the first is used here.
_SAME = {
    "endpoint": ("endpoint_url_s3", "endpoint_url"),
    "region": ("default_region",),
    "session_token": ("token",),
}
#: S3A's name of an option's value that needs no other form.
_S3A = {
    "endpoint": "endpoint",
    "region": "endpoint.region",
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
}
_OF_SESSIONS = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
#: Of a pod in Kubernetes whose account stands for a role of Amazon's.
_OF_PODS = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"


def jars_of(settings: Settings) -> list[str]:
    """The jars that Spark needs for the store, if there are any.

    :raises PrerequisiteError: if tables or checkpoints are in a store, and its jars are not there
    """
    found = sorted(str(jar) for jar in settings.s3_jars_dir.glob("*.jar"))
    if settings.uses_s3 and not found:
        problem = f"{settings.s3_jars_dir} holds none"
        raise PrerequisiteError(what="Spark's jars for S3", problem=problem, cure="Run `hindcast jars`.")
    return found


def configure(session: SparkSession, settings: Settings) -> None:
    """Give the store's options to the running JVM: they may be secrets, and all can read its command line."""
    context: Any = session.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    for key, value in hadoop_settings(settings, os.environ).items():
        hadoop.set(key, value)


def hadoop_settings(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """What Hadoop needs to reach the store as deltalake does."""
    options = _options(settings.storage_options, environment)
    found = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    }
    for name, of_s3a in _S3A.items():
        if name in options:
            found[f"fs.s3a.{of_s3a}"] = options[name]
    endpoint = options.get("endpoint", "")
    if endpoint:
        by_host = options.get("virtual_hosted_style_request", "false")
        found["fs.s3a.path.style.access"] = str(not _is_true(by_host)).lower()
        found["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    if "session_token" in options:
        found["fs.s3a.aws.credentials.provider"] = _OF_SESSIONS
    elif "access_key_id" not in options and "web_identity_token_file" in options:
        found["fs.s3a.aws.credentials.provider"] = _OF_PODS
    return found


def _options(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The options by deltalake's names without their prefix. What is given comes before variables."""
    options: dict[str, str] = {}
    for name, value in environment.items():
        if name.lower().startswith(_PREFIX):
            options[_plain(name)] = value
    for name, value in given.items():
        options[_plain(name)] = value
    return options


def _plain(name: str) -> str:
    plain = name.lower().removeprefix(_PREFIX)
    for first, others in _SAME.items():
        if plain in others:
            return first
    return plain


def _is_true(value: str) -> bool:
    return value.lower() in {"true", "1", "yes", "on"}
