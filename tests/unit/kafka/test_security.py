"""What Spark's client and kafka-python are told of an account and of certificates."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.certificates import Authority

from hindcast.errors import SettingsRefusedError
from hindcast.kafka.security import client_options, java_properties, spark_options
from hindcast.settings import Settings

Factory = Callable[..., Settings]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file for each setting that names one."""
    password = tmp_path / "password"
    password.write_text("the word\n")
    authority = Authority(tmp_path / "authority")
    identity = authority.issue("me")
    return {
        "kafka_password_file": password,
        "kafka_ca_file": authority.certificate,
        "kafka_certificate_file": identity.certificate,
        "kafka_key_file": identity.key,
    }


def _certificate(file: Path) -> bytes:
    """The first one of a file."""
    text = file.read_text()
    end = "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)])


def _peer_of(client: ssl.SSLContext, files: dict[str, Path]) -> bytes | None:
    """The certificate that a broker with these files sees, which wants one of its own authority."""
    broker = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files["kafka_ca_file"])
    broker.verify_mode = ssl.CERT_REQUIRED
    broker.load_cert_chain(files["kafka_certificate_file"], files["kafka_key_file"])
    to_broker, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = broker.wrap_bio(to_broker, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_broker, server_hostname="localhost")
    for _ in range(4):
        for side in (asking, serving):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return serving.getpeercert(binary_form=True)


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
        kafka_password_file=files["kafka_password_file"],
        kafka_ca_file=files["kafka_ca_file"],
    )
    python = client_options(settings)
    context = python.pop("ssl_context")
    assert python == {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "the word",
    }
    assert context.get_ca_certs(binary_form=True) == [_certificate(files["kafka_ca_file"])]
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{login} username="me" password="the word";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": files["kafka_ca_file"].read_text(),
    }


def test_a_password_comes_before_that_of_a_file(
    settings_factory: Factory, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a connection of Airflow's, or a secret of Kubernetes, before the file that the home's settings name."""
    given = {
        "kafka_security_protocol": "SASL_SSL",
        "kafka_username": "me",
        "kafka_password_file": str(files["kafka_password_file"]),
    }
    (tmp_path / "settings.json").write_text(json.dumps(given))
    monkeypatch.setenv("HINDCAST_HOME", str(tmp_path))
    assert client_options(Settings())["sasl_plain_password"] == "the word"
    monkeypatch.setenv("HINDCAST_KAFKA_PASSWORD", "another")
    assert client_options(Settings())["sasl_plain_password"] == "another"


def test_both_clients_exchange_the_account_for_tokens(settings_factory: Factory) -> None:
    """One at the same address; each JVM is told that it may."""
    url = "https://login.example/token"
    settings = settings_factory(
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="OAUTHBEARER",
        kafka_username="me",
        kafka_password='a "word"',
        kafka_oauth_token_url=url,
        kafka_oauth_scope="read",
    )
    python = client_options(settings)
    assert python["sasl_mechanism"] == "OAUTHBEARER"
    assert python["sasl_oauth_token_provider"] is client_options(settings)["sasl_oauth_token_provider"]
    package = "org.apache.kafka.common.security.oauthbearer"
    spark = spark_options(settings)
    assert spark["kafka.sasl.jaas.config"] == (
        f'{package}.OAuthBearerLoginModule required clientId="me" clientSecret="a \\"word\\"" scope="read";'
    )
    assert spark["kafka.sasl.login.callback.handler.class"] == f"{package}.OAuthBearerLoginCallbackHandler"
    assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == url
    assert java_properties(settings) == {"org.apache.kafka.sasl.oauthbearer.allowed.urls": url}
    assert java_properties(settings_factory()) == {}


@pytest.mark.parametrize("url", ["file:///etc/passwd", 'https://a/ -Dx="y', "login.example"])
def test_an_address_of_tokens_is_one_of_the_web(settings_factory: Factory, url: str) -> None:
    """It stands among the options of a JVM, and is opened."""
    with pytest.raises(SettingsRefusedError, match="HINDCAST_KAFKA_OAUTH_TOKEN_URL"):
        settings_factory(kafka_oauth_token_url=url)


def test_a_certificate_is_an_identity(settings_factory: Factory, files: dict[str, Path]) -> None:
    """Without SASL there is no account."""
    names = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file")
    settings = settings_factory(kafka_security_protocol="SSL", **{name: files[name] for name in names})
    assert _peer_of(client_options(settings)["ssl_context"], files) == _certificate(
        files["kafka_certificate_file"]
    )
    spark = spark_options(settings)
    assert {name: spark[name] for name in spark if "keystore" in name} == {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": files["kafka_certificate_file"].read_text(),
        "kafka.ssl.keystore.key": files["kafka_key_file"].read_text(),
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
        (
            {
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_username": "x",
                "kafka_password": "x",
            },
            "KAFKA_OAUTH_TOKEN_URL",
        ),
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


def test_a_file_that_is_no_certificate_is_named(settings_factory: Factory, tmp_path: Path) -> None:
    """OpenSSL alone says "no certificate or crl found", and not where."""
    file = tmp_path / "authority.pem"
    file.write_text("no certificate")
    settings = settings_factory(kafka_security_protocol="SSL", kafka_ca_file=file)
    with pytest.raises(SettingsRefusedError, match=r"authority\.pem: OpenSSL cannot use"):
        client_options(settings)


def test_a_password_is_shown_nowhere(settings_factory: Factory) -> None:
    """Neither in the settings' own text nor in a refusal."""
    assert "s3cret" not in repr(settings_factory(kafka_password="s3cret"))
    with pytest.raises(SettingsRefusedError) as refused:
        client_options(settings_factory(kafka_security_protocol="SASL_SSL", kafka_password="s3cret"))
    assert "s3cret" not in str(refused.value)
