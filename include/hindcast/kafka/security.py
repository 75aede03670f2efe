"""How clients prove to the brokers who they are: one account and one set of certificates, for Spark's client
and for kafka-python alike.

The settings have the names that Kafka's documentation gives them (``security.protocol``, ``sasl.mechanism``).
Certificates and keys are PEM files. Spark's client gets their text, not their paths, so executors on other
machines need no such files (Kafka's improvement proposal 651).
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

from hindcast.errors import SettingsRefusedError
from hindcast.kafka.access_token import tokens_of
from hindcast.settings import Settings

#: A healthy broker's takes milliseconds.
_HANDSHAKE_SECONDS = 5.0
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OAUTH = "OAUTHBEARER"
_OAUTH_PACKAGE = "org.apache.kafka.common.security.oauthbearer"


def client_options(settings: Settings) -> dict[str, Any]:
    """The arguments by which a client of kafka-python reaches the brokers.

    :raises SettingsRefusedError: if an account or a file is missing, or a file holds no certificate or key
    """
    return {"bootstrap_servers": settings.bootstrap_servers.split(","), **security_options(settings)}


def security_options(settings: Settings) -> dict[str, Any]:
    """The same without the addresses.

    :raises SettingsRefusedError: if an account or a file is missing, or a file holds no certificate or key
    """
    _check(settings)
    options: dict[str, Any] = {"security_protocol": settings.kafka_security_protocol}
    if uses_oauth(settings):
        options["sasl_mechanism"] = _OAUTH
        options["sasl_oauth_token_provider"] = tokens_of(
            settings.kafka_oauth_token_url,
            settings.kafka_username,
            _password(settings),
            settings.kafka_oauth_scope,
        )
    elif uses_sasl(settings):
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        options["sasl_plain_username"] = settings.kafka_username
        options["sasl_plain_password"] = _password(settings)
    if _uses_tls(settings):
        options["ssl_context"] = _tls(settings)
    return options


class _TimedSocket(ssl.SSLSocket):
    """A socket whose handshake ends. That of kafka-python has no timeout: it waits for ever for a port that
    takes the connection and says nothing.
    """

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base class has it
        """It blocks kafka-python's own thread, which has no other connection while it begins."""
        self.settimeout(_HANDSHAKE_SECONDS)
        try:
            super().do_handshake(block)
        except OSError:
            self.close()  # kafka-python drops it
            raise
        self.setblocking(False)


def _tls(settings: Settings) -> ssl.SSLContext:
    """Brokers' names are checked against their certificates; the client shows its own if it has one."""
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ca_file)
        if settings.kafka_certificate_file is not None:
            context.load_cert_chain(settings.kafka_certificate_file, settings.kafka_key_file)
    except ssl.SSLError as error:
        named = [str(file) for file in _files(settings).values() if file is not None]
        problem = (
            f"\n- {', '.join(named)}: OpenSSL cannot use these ({error}). Give certificates and keys as PEM."
        )
        raise SettingsRefusedError(count=1, problems=problem) from error
    context.sslsocket_class = _TimedSocket
    return context


def spark_options(settings: Settings) -> dict[str, str]:
    """The options by which Spark's Kafka source reaches the brokers.

    :raises SettingsRefusedError: if an account or a file is missing
    """
    _check(settings)
    options = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.kafka_security_protocol,
    }
    if uses_sasl(settings):
        options["sasl.mechanism"] = settings.kafka_sasl_mechanism
        options["sasl.jaas.config"] = _jaas(settings)
    if uses_oauth(settings):
        options["sasl.login.callback.handler.class"] = f"{_OAUTH_PACKAGE}.OAuthBearerLoginCallbackHandler"
        options["sasl.oauthbearer.token.endpoint.url"] = settings.kafka_oauth_token_url
    if _uses_tls(settings):
        options |= _pem(settings)
    return {f"kafka.{name}": value for name, value in options.items()}


def uses_sasl(settings: Settings) -> bool:
    """Whether clients have an account."""
    return settings.kafka_security_protocol.startswith("SASL")


def uses_oauth(settings: Settings) -> bool:
    """Whether an account is exchanged for access tokens."""
    return uses_sasl(settings) and settings.kafka_sasl_mechanism == _OAUTH


def java_properties(settings: Settings) -> dict[str, str]:
    """The properties that each JVM with a client needs. Kafka's client (3.9.1 and later) asks no address for
    tokens that these do not name.
    """
    if not uses_oauth(settings):
        return {}
    return {"org.apache.kafka.sasl.oauthbearer.allowed.urls": settings.kafka_oauth_token_url}


def _uses_tls(settings: Settings) -> bool:
    return settings.kafka_security_protocol.endswith("SSL")


def _files(settings: Settings) -> dict[str, Path | None]:
    """The files of certificates and keys, by kafka-python's names without their prefix."""
    return {
        "cafile": settings.kafka_ca_file,
        "certfile": settings.kafka_certificate_file,
        "keyfile": settings.kafka_key_file,
    }


def _check(settings: Settings) -> None:
    problems = []
    if uses_sasl(settings):
        if not settings.kafka_username:
            problems.append("HINDCAST_KAFKA_USERNAME: SASL needs an account. Set it.")
        if not settings.kafka_password and settings.kafka_password_file is None:
            problems.append("HINDCAST_KAFKA_PASSWORD_FILE: SASL needs a password. Name a file that holds it.")
    if uses_oauth(settings) and not settings.kafka_oauth_token_url:
        problems.append("HINDCAST_KAFKA_OAUTH_TOKEN_URL: OAUTHBEARER gets its tokens there. Set it.")
    if bool(settings.kafka_certificate_file) != bool(settings.kafka_key_file):
        problems.append(
            "HINDCAST_KAFKA_KEY_FILE: a client's certificate and its key go together. Set both, or neither."
        )
    for file in (settings.kafka_password_file, *_files(settings).values()):
        if file is not None and not os.access(file, os.R_OK):
            problem = f"{file}: there is no such file, or it cannot be read. Correct its setting."
            problems.append(problem)
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise SettingsRefusedError(count=len(problems), problems=listed)


def _password(settings: Settings) -> str:
    """The password itself, or that of the file. The file is read each time, so a password that was changed
    counts from the next connection on.

    A file may stand in the settings of the home, where a variable or a connection of Airflow has another
    password.
    """
    if settings.kafka_password or settings.kafka_password_file is None:
        return settings.kafka_password
    return settings.kafka_password_file.read_text(encoding="utf-8").strip()


def _jaas(settings: Settings) -> str:
    """The login module of the mechanism, as Java's Authentication and Authorization Service writes it."""
    if uses_oauth(settings):
        account = f"clientId={_quoted(settings.kafka_username)} clientSecret={_quoted(_password(settings))}"
        if settings.kafka_oauth_scope:
            account += f" scope={_quoted(settings.kafka_oauth_scope)}"
        return f"{_OAUTH_PACKAGE}.OAuthBearerLoginModule required {account};"
    module = _LOGIN_MODULES[settings.kafka_sasl_mechanism]
    account = _quoted(settings.kafka_username)
    return f"{module} required username={account} password={_quoted(_password(settings))};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pem(settings: Settings) -> dict[str, str]:
    options = {}
    if settings.kafka_ca_file is not None:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = settings.kafka_ca_file.read_text(encoding="utf-8")
    if settings.kafka_certificate_file is not None and settings.kafka_key_file is not None:
        options["ssl.keystore.type"] = "PEM"
        certificate = settings.kafka_certificate_file.read_text(encoding="utf-8")
        options["ssl.keystore.certificate.chain"] = certificate
        options["ssl.keystore.key"] = settings.kafka_key_file.read_text(encoding="utf-8")
    return options
