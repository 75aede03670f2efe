"""The brokers and the account from one of Airflow's connections, for the processes that Airflow starts.

It is a connection of the type that the provider ``apache-kafka`` brings: its *extra* is a JSON object with
the names of Kafka's clients, such as ``bootstrap.servers`` and ``sasl.username``. Airflow keeps it encrypted,
or in a secrets backend, and hides its values in logs.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Connection

from hindcast.errors import SettingsRefusedError
from hindcast.settings import Settings

#: Key of the connection -> the setting that it gives.
_SETTING_OF = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "kafka_security_protocol",
    "sasl.mechanism": "kafka_sasl_mechanism",
    "sasl.mechanisms": "kafka_sasl_mechanism",
    "sasl.username": "kafka_username",
    "sasl.password": "kafka_password",
    "sasl.oauthbearer.client.id": "kafka_username",
    "sasl.oauthbearer.client.secret": "kafka_password",
    "sasl.oauthbearer.token.endpoint.url": "kafka_oauth_token_url",
    "sasl.oauthbearer.scope": "kafka_oauth_scope",
    "ssl.ca.location": "kafka_ca_file",
    "ssl.certificate.location": "kafka_certificate_file",
    "ssl.key.location": "kafka_key_file",
}
#: How librdkafka's clients are told of the grant that all clients of Hindcast use.
_KNOWN = {"sasl.oauthbearer.method": "oidc"}
#: Of the other keys those that begin so say who a client is: leaving one out would fail at the brokers.
_OF_SECURITY = ("sasl.", "ssl.", "security.")


def settings_of_children(settings: Settings) -> Settings:
    """The settings, with what the connection has that they name. Without a name they are as they were.

    :raises SettingsRefusedError: if the connection has none of the brokers, a key that Hindcast's clients do
        not know, or a value that they do not take
    """
    name = settings.kafka_connection
    if not name:
        return settings
    extra: dict[str, Any] = Connection.get(name).extra_dejson
    problems = []
    found: dict[str, Any] = {}
    for key, value in extra.items():
        if key in _SETTING_OF:
            found[_SETTING_OF[key]] = value
        elif _KNOWN.get(key) == value:
            continue
        elif key.startswith(_OF_SECURITY):
            problems.append(f"Airflow's connection {name}: {key} is not known here. Remove it.")
    if "bootstrap_servers" not in found:
        problems.append(f"Airflow's connection {name}: its extra has no bootstrap.servers. Add them.")
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise SettingsRefusedError(count=len(problems), problems=listed)
    if "kafka_password" in found:
        found["kafka_password_file"] = None
    return Settings(**{**settings.model_dump(), **found})
