"""What Spark's file system is told of an object store: deltalake's options under Hadoop's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindcast.errors import PrerequisiteError
from hindcast.settings import Settings
from hindcast.spark.object_store import hadoop_settings, jars_of

ALWAYS = {
    "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}


def told(options: dict[str, str], environment: dict[str, str] | None = None) -> dict[str, str]:
    """The settings beside those that are always there, without the prefix of S3A."""
    found = hadoop_settings(Settings(storage_options=options), environment or {})
    assert ALWAYS.items() <= found.items()
    return {name.removeprefix("fs.s3a."): value for name, value in found.items() if name not in ALWAYS}


def test_without_options_hadoop_looks_for_an_account_itself() -> None:
    """In the variables of its own JVM, or by the role of the machine."""
    assert told({}) == {}
    assert told({"aws_region": "eu-west-1"}) == {"endpoint.region": "eu-west-1"}


@pytest.mark.parametrize("name", ["aws_endpoint", "AWS_ENDPOINT_URL", "endpoint_url", "aws_endpoint_url_s3"])
def test_a_store_of_ones_own_is_reached_by_paths(name: str) -> None:
    """Whatever of deltalake's names the option has: such a store seldom has a host for each bucket."""
    assert told({name: "https://store.example"}) == {
        "endpoint": "https://store.example",
        "path.style.access": "true",
        "connection.ssl.enabled": "true",
    }


def test_a_store_of_ones_own_may_have_hosts_and_no_tls() -> None:
    """Both as deltalake is told."""
    options = {"endpoint": "http://10.0.0.7:9000", "aws_virtual_hosted_style_request": "True"}
    found = told(options)
    assert (found["path.style.access"], found["connection.ssl.enabled"]) == ("false", "false")


def test_an_account_comes_from_options_before_variables() -> None:
    """As in deltalake."""
    environment = {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "from a variable", "HOME": "/"}
    assert told({"aws_access_key_id": "own"}, environment) == {
        "access.key": "own",
        "secret.key": "from a variable",
    }


def test_keys_of_a_session_need_their_token() -> None:
    """Without its own provider S3A would send the keys alone."""
    options = {"access_key_id": "a", "secret_access_key": "b", "token": "c"}
    found = told(options)
    assert found["session.token"] == "c"
    assert found["aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")


def test_a_pod_has_the_role_of_its_account() -> None:
    """Amazon's Kubernetes names a file with a token; keys come before it."""
    pod = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/stream"}
    assert told({}, pod)["aws.credentials.provider"].endswith("WebIdentityTokenFileCredentialsProvider")
    assert "aws.credentials.provider" not in told({"aws_access_key_id": "a"}, pod)


def test_spark_needs_jars_for_the_store(tmp_path: Path) -> None:
    """A machine without tables there needs none."""
    own = tmp_path / "spark"
    assert jars_of(Settings(jars_dir=own)) == []
    for changes in ({"tables_url": "s3://lake/t"}, {"storage_options": {"AWS_REGION": "eu-west-1"}}):
        with pytest.raises(PrerequisiteError, match="Run `hindcast jars`"):
            jars_of(Settings(jars_dir=own, **changes))
    (tmp_path / "s3").mkdir()
    (tmp_path / "s3" / "hadoop-aws.jar").touch()
    assert jars_of(Settings(jars_dir=own)) == [str(tmp_path / "s3" / "hadoop-aws.jar")]
