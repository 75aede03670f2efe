"""What Spark's client and kafka-python are told of an account and of certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hindcast.errors import SettingsRefusedError
from hindcast.kafka.security import client_options, spark_options
from hindcast.settings import Settings

Factory = Callable[..., Settings]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file for each setting that names one; each holds its setting's name."""
    found = {}
    for name in ("kafka_password_file", "kafka_ca_file", "kafka_certificate_file", "kafka_key_file"):
        found[name] = tmp_path / name
        found[name].write_text(f"{name}\n")
    return found


def test_a_plain_broker_needs_an_address_alone(settings_factory: Factory) -> None:
    """Nothing else is said, so a client's own defaults hold."""
    settings = settings_factory(bootstrap_servers="a:1,b:2")
    assert client_options(settings) == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_both_clients_have_the_same_account(settings_factory: Factory, files: dict[str, Path]) -> None:
    """The password of the file, without the end of its line; Spark's client gets certificates as text."""
    settings = settings_factory(
        bootstrap_servers="a:1",
        kafka_security_protocol="SASL_SSL",
        kafka_username="me",
        kafka_password="another",
        kafka_password_file=files["kafka_password_file"],
        kafka_ca_file=files["kafka_ca_file"],
    )
    assert client_options(settings) == {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "kafka_password_file",
        "ssl_cafile": str(files["kafka_ca_file"]),
    }
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{login} username="me" password="kafka_password_file";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "kafka_ca_file\n",
    }


def test_a_certificate_is_an_identity(settings_factory: Factory, files: dict[str, Path]) -> None:
    """Without SASL there is no account."""
    names = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file")
    settings = settings_factory(kafka_security_protocol="SSL", **{name: files[name] for name in names})
    python = client_options(settings)
    assert {name: python[name] for name in python if "ssl" in name} == {
        "ssl_cafile": str(files["kafka_ca_file"]),
        "ssl_certfile": str(files["kafka_certificate_file"]),
        "ssl_keyfile": str(files["kafka_key_file"]),
    }
    spark = spark_options(settings)
    assert {name: spark[name] for name in spark if "keystore" in name} == {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "kafka_certificate_file\n",
        "kafka.ssl.keystore.key": "kafka_key_file\n",
    }
    assert "kafka.sasl.jaas.config" not in spark


def test_quotes_of_a_password_are_no_syntax(settings_factory: Factory) -> None:
    """Nobody logs in as another by a quote in a name."""
    settings = settings_factory(
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="PLAIN",
        kafka_username='a" username="b',
        kafka_password="c\\",
    )
    written = spark_options(settings)["kafka.sasl.jaas.config"]
    assert written.endswith('required username="a\\" username=\\"b" password="c\\\\";')
    assert "PlainLoginModule" in written


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka_security_protocol": "SASL_SSL", "kafka_password": "x"}, "KAFKA_USERNAME"),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_username": "x"}, "KAFKA_PASSWORD_FILE"),
        ({"kafka_security_protocol": "SSL", "kafka_certificate_file": "/dev/null"}, "KAFKA_KEY_FILE"),
        ({"kafka_security_protocol": "SSL", "kafka_ca_file": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_what_is_missing_is_named(settings_factory: Factory, given: dict[str, str], said: str) -> None:
    """Before a client is made, which would say it in its own way, or not at all."""
    settings = settings_factory(**given)
    for options in (client_options, spark_options):
        with pytest.raises(SettingsRefusedError, match=said):
            options(settings)


def test_a_password_is_shown_nowhere(settings_factory: Factory) -> None:
    """Neither in the settings' own text nor in a refusal."""
    assert "s3cret" not in repr(settings_factory(kafka_password="s3cret"))
    with pytest.raises(SettingsRefusedError) as refused:
        client_options(settings_factory(kafka_security_protocol="SASL_SSL", kafka_password="s3cret"))
    assert "s3cret" not in str(refused.value)
