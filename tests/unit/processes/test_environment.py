"""What the processes that Hindcast starts get of their starter's environment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hindcast.processes.environment import child_environment
from hindcast.settings import Settings


@pytest.mark.parametrize(
    "name",
    [
        "AWS_PROFILE",
        "AZURE_TENANT_ID",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "HADOOP_CONF_DIR",
        "KRB5CCNAME",
        "SPARK_CONF_DIR",
        "SSL_CERT_FILE",
        "https_proxy",
        "NO_PROXY",
    ],
)
def test_what_leads_to_stores_and_clusters_is_inherited(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As a user of Spark, Hadoop and cloud stores sets it for any other program."""
    monkeypatch.setenv(name, "here")
    assert child_environment(settings)[name] == "here"


def test_the_launchers_airflow_is_not_inherited(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys stay where they are; what a setting names is handed on."""
    for name in ("AIRFLOW__CORE__FERNET_KEY", "MY_TOKEN", "MY_OTHER"):
        monkeypatch.setenv(name, "secret")
    settings = settings_factory(inherited_variables="MY_TOKEN, UNSET")
    found = child_environment(settings)
    assert {name for name, value in found.items() if value == "secret"} == {"MY_TOKEN"}


def test_settings_come_before_what_is_inherited(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of Hindcast's own is that of the settings, wherever they were read."""
    monkeypatch.setenv("HINDCAST_FLEET", "another")
    assert child_environment(settings)["HINDCAST_FLEET"] == settings.fleet


def test_executors_may_have_a_python_of_their_own(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster it need not stand where the driver's does."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/executor/bin/python")
    assert child_environment(settings)["PYSPARK_PYTHON"] == "/opt/executor/bin/python"
