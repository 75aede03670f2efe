"""A broker as people run it: TLS with an authority of its own, accounts, and lists of who may do what."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from support.certificates import Authority, Identity
from support.token_server import AUDIENCE, TokenServer, token_server
from support.waiting import wait_until

from hindcast_sandbox import broker
from hindcast_sandbox.ports import free_ports

#: May do everything; the account of the broker itself.
ADMIN = ("admin", 'quoted " and \\ back')
#: May do what a list says.
READER = ("reader", "reading")
_SCRAM = "SCRAM-SHA-512"
_READY_SECONDS = 60.0


@dataclass(frozen=True)
class SecuredBroker:
    """One that runs: ``accounts`` is the address for accounts, ``certificates`` that for certificates.
    ``tokens`` exchanges accounts for the access tokens that it takes.
    """

    accounts: str
    certificates: str
    authority: Authority
    tokens: TokenServer

    def admin_options(self) -> dict[str, Any]:
        """The arguments of a client of kafka-python that may do everything."""
        return {
            "bootstrap_servers": self.accounts,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": ADMIN[0],
            "sasl_plain_password": ADMIN[1],
            "ssl_cafile": str(self.authority.certificate),
        }


@contextmanager
def secured_broker(folder: Path, jars: Path) -> Iterator[SecuredBroker]:
    """Start a broker with its data in the folder, and end it."""
    keys = folder / "keys.json"
    with token_server(keys, dict([READER])) as tokens, _broker(folder, jars, tokens) as made:
        yield made


@contextmanager
def _broker(folder: Path, jars: Path, tokens: TokenServer) -> Iterator[SecuredBroker]:
    authority = Authority(folder / "authority")
    identity = authority.issue("broker")
    accounts, certificates, controller = free_ports(3)
    properties = folder / "server.properties"
    settings = _properties(folder, authority, identity, accounts, certificates, controller)
    settings |= _takes_tokens(tokens)
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    log4j = folder / "log4j2.properties"
    log4j.write_text(broker.LOG4J)
    logged = f"-Dlog4j2.configurationFile={log4j}"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys.as_uri()}"
    run = [broker.java(), *broker.JVM_OPTIONS, logged, allowed, "-cp", str(jars / "*")]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    scram = [f"--add-scram={_SCRAM}=[name={name},password={word}]" for name, word in [READER]]
    form = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={properties}", *scram]
    subprocess.run([*run, *form], check=True, capture_output=True)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*run, "kafka.Kafka", str(properties)], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            made = SecuredBroker(f"127.0.0.1:{accounts}", f"127.0.0.1:{certificates}", authority, tokens)
            wait_until(lambda: _answers(made), _READY_SECONDS, "the secured broker answers")
            yield made
        finally:
            process.terminate()
            process.wait(30)


def _answers(made: SecuredBroker) -> bool:
    try:
        with KafkaAdminClient(**made.admin_options(), bootstrap_timeout_ms=2000) as admin:
            return bool(admin.describe_cluster()["brokers"])
    except (KafkaError, OSError):
        return False


def _properties(
    folder: Path, authority: Authority, identity: Identity, accounts: int, certificates: int, controller: int
) -> dict[str, Any]:
    store = folder / "broker.pem"
    store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
    name, word = (part.replace("\\", "\\\\").replace('"', '\\"') for part in ADMIN)
    login = "org.apache.kafka.common.security"
    plain = (
        f'{login}.plain.PlainLoginModule required username="{name}" password="{word}" user_{name}="{word}";'
    )
    listeners = {"SASL_SSL": accounts, "SSL": certificates}
    shown = ",".join(f"{kind}://127.0.0.1:{port}" for kind, port in listeners.items())
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{shown},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": shown,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SASL_SSL",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "sasl.enabled.mechanisms": f"PLAIN,{_SCRAM},OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain.replace("\\", "\\\\"),
        f"listener.name.sasl_ssl.{_SCRAM.lower()}.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.certificate,
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The controller's listener is plain and of this machine alone.
        "super.users": f"User:{ADMIN[0]};User:ANONYMOUS",
    }


def _takes_tokens(tokens: TokenServer) -> dict[str, Any]:
    package = "org.apache.kafka.common.security.oauthbearer"
    listener = "listener.name.sasl_ssl.oauthbearer"
    return {
        f"{listener}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{listener}.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
