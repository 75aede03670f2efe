"""What Airflow starts has the brokers and the account of one of Airflow's connections."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from airflow.sdk.exceptions import AirflowNotFoundException

from hindcast.airflow.kafka_connection import settings_of_children
from hindcast.errors import SettingsRefusedError
from hindcast.kafka.security import client_options, spark_options
from hindcast.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")

ACCOUNT = {
    "bootstrap.servers": "broker-1:9093,broker-2:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "streams",
    "sasl.password": "secret",
}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings that name a connection whose extra has these keys."""

    def make(extra: dict[str, Any], **settings: Any) -> Settings:
        connection = json.dumps({"conn_type": "kafka", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_STREAMS_KAFKA", connection)
        return settings_of_children(Settings(kafka_connection="streams_kafka", **settings))

    return make


def test_children_get_the_account(connected: Any) -> None:
    """Of the keys that say how a client reaches the brokers; what else a client may set is left alone."""
    settings = connected({**ACCOUNT, "group.id": "any", "auto.offset.reset": "latest"}, workers=7)
    options = client_options(settings)
    assert isinstance(options.pop("ssl_context"), ssl.SSLContext)
    assert options == {
        "bootstrap_servers": ["broker-1:9093", "broker-2:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "streams",
        "sasl_plain_password": "secret",
    }
    assert settings.workers == 7
    assert settings.environment()["HINDCAST_KAFKA_PASSWORD"] == "secret"
    assert "secret" not in repr(settings)


def test_children_exchange_the_account_for_tokens(connected: Any) -> None:
    """A connection as librdkafka's clients have it."""
    settings = connected(
        {
            "bootstrap.servers": "broker-1:9093",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "streams",
            "sasl.oauthbearer.client.secret": "secret",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
            "sasl.oauthbearer.scope": "kafka",
        }
    )
    options = spark_options(settings)
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert 'clientId="streams" clientSecret="secret" scope="kafka"' in options["kafka.sasl.jaas.config"]
    assert settings.environment()["HINDCAST_KAFKA_OAUTH_SCOPE"] == "kafka"


def test_the_connections_password_comes_before_a_file(connected: Any, tmp_path: Any) -> None:
    """The file is of another account."""
    (tmp_path / "password").write_text("another")
    settings = connected(ACCOUNT, kafka_password_file=tmp_path / "password")
    assert client_options(settings)["sasl_plain_password"] == "secret"


def test_settings_without_a_connection_stay(settings: Settings) -> None:
    """Airflow is not asked."""
    assert settings_of_children(settings) is settings


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"security.protocol": "SSL"}, "its extra has no bootstrap.servers"),
        ({**ACCOUNT, "sasl.oauthbearer.config": "x"}, "sasl.oauthbearer.config is not known here"),
        ({**ACCOUNT, "sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method is not known here"),
        ({**ACCOUNT, "security.protocol": "TLS"}, "KAFKA_SECURITY_PROTOCOL"),
    ],
)
def test_a_connection_that_would_fail_at_the_brokers_is_refused(
    connected: Any, extra: dict[str, Any], problem: str
) -> None:
    """Before a process is started, and without the password in the text."""
    with pytest.raises(SettingsRefusedError, match=problem) as refused:
        connected(extra)
    assert "secret" not in str(refused.value)


def test_a_connection_that_is_not_there_is_named() -> None:
    """By Airflow's own error."""
    with pytest.raises(AirflowNotFoundException, match="nowhere"):
        settings_of_children(Settings(kafka_connection="nowhere"))
