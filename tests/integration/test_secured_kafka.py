"""Brokers with accounts, TLS and lists of who may do what, read by Spark and asked by kafka-python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from pyspark.sql import SparkSession
from support.secured_broker import ADMIN, READER, Authority, SecuredBroker, secured_broker

from hindcast import catalog
from hindcast.errors import BadInputError, BrokerUnavailableError, UnknownTopicError
from hindcast.installation import Installation
from hindcast.kafka.offsets import TopicOffsets
from hindcast.kafka.redrive import MARKS, Repaired, redrive
from hindcast.settings import Settings, project_root
from hindcast.spark import kafka_source, session
from hindcast.tables.table_names import ControlTable
from hindcast_sandbox.doctor import State, examine

pytestmark = pytest.mark.integration

TOPIC, CLOSED = "open-to-the-reader", "closed-to-the-reader"
ROWS = 10
Factory = Callable[..., Settings]


@pytest.fixture(scope="module")
def broker_(tmp_path_factory: pytest.TempPathFactory, jars_dir: Path) -> Iterator[SecuredBroker]:
    """Two topics of one partition with some records; the reader's account and certificate may read one."""
    folder = tmp_path_factory.mktemp("secured")
    with secured_broker(folder, jars_dir.parent / "kafka") as made:
        with KafkaAdminClient(**made.admin_options()) as admin:
            shape = {"num_partitions": 1, "replication_factor": 1}
            admin.create_topics({TOPIC: shape, CLOSED: shape}, wait_for_metadata=True)
            topic = ResourcePattern(ResourceType.TOPIC, TOPIC)
            may = [
                ACL(f"User:{READER[0]}", "*", operation, ACLPermissionType.ALLOW, topic)
                for operation in (ACLOperation.READ, ACLOperation.DESCRIBE)
            ]
            group = ResourcePattern(ResourceType.GROUP, "*")
            may.append(ACL(f"User:{READER[0]}", "*", ACLOperation.READ, ACLPermissionType.ALLOW, group))
            admin.create_acls(may)
        producer = KafkaProducer(**made.admin_options())
        for topic_ in (TOPIC, CLOSED):
            for number in range(ROWS):
                producer.send(topic_, str(number).encode())
        producer.close()
        yield made


@pytest.fixture
def reader(broker_: SecuredBroker, settings_factory: Factory) -> Factory:
    """Settings of the reader's account, with changes."""

    def make(**changes: Any) -> Settings:
        given = {
            "bootstrap_servers": broker_.accounts,
            "kafka_security_protocol": "SASL_SSL",
            "kafka_username": READER[0],
            "kafka_password": READER[1],
            "kafka_ca_file": broker_.authority.certificate,
        }
        return settings_factory(**{**given, **changes})

    return make


@pytest.fixture
def by_certificate(broker_: SecuredBroker, settings_factory: Factory) -> Settings:
    """Settings of a certificate that is issued to the reader."""
    identity = broker_.authority.issue(READER[0])
    return settings_factory(
        bootstrap_servers=broker_.certificates,
        kafka_security_protocol="SSL",
        kafka_ca_file=broker_.authority.certificate,
        kafka_certificate_file=identity.certificate,
        kafka_key_file=identity.key,
    )


def read(spark: SparkSession, settings: Settings, topic: str = TOPIC) -> list[str]:
    """The topic's values, by the offsets that kafka-python is told and the records that Spark reads."""
    with TopicOffsets(settings) as offsets:
        first, end = offsets.earliest(topic), offsets.latest(topic)
    rows = kafka_source.kafka_range(spark, settings, topic, first, end)
    return sorted(row.value.decode() for row in rows.collect())


EXPECTED = [str(number) for number in range(ROWS)]


def test_an_account_reads(spark: SparkSession, reader: Factory) -> None:
    """With a password that the broker keeps as a salted hash."""
    assert read(spark, reader()) == EXPECTED


def test_a_plain_account_reads(spark: SparkSession, reader: Factory, tmp_path: Path) -> None:
    """Its password has quotes and backslashes, and is in a file."""
    secret = tmp_path / "password"
    secret.write_text(ADMIN[1] + "\n")
    settings = reader(
        kafka_sasl_mechanism="PLAIN", kafka_username=ADMIN[0], kafka_password="", kafka_password_file=secret
    )
    assert read(spark, settings) == EXPECTED


@pytest.fixture
def by_token(broker_: SecuredBroker, reader: Factory, spark: SparkSession) -> Callable[..., Settings]:
    """Settings of the reader's account at the server of tokens."""

    def make(**changes: Any) -> Settings:
        url = broker_.tokens.url
        made = reader(**{"kafka_sasl_mechanism": "OAUTHBEARER", "kafka_oauth_token_url": url, **changes})
        session._set_properties(spark, made)
        return made

    return make


def test_an_access_token_reads(spark: SparkSession, broker_: SecuredBroker, by_token: Factory) -> None:
    """Both clients exchange the account for one, and the broker knows by it who they are."""
    before = len(broker_.tokens.asked)
    assert read(spark, by_token(kafka_oauth_scope="streams")) == EXPECTED
    asked = broker_.tokens.asked[before:]
    assert {form["scope"] for form in asked} == {"streams"}
    assert len(asked) >= 2


def test_an_account_that_gets_no_token_is_told(by_token: Factory) -> None:
    """In the words of the server of tokens."""
    said = refusal(by_token(kafka_password="guess"))
    assert "refuse this client" in said
    assert "nobody knows reader" in said


def test_a_certificate_reads(spark: SparkSession, by_certificate: Settings) -> None:
    """Without any password."""
    assert read(spark, by_certificate) == EXPECTED


def refusal(settings: Settings, topic: str = TOPIC) -> str:
    """What a person is told who asks for the topic's end."""
    with (
        TopicOffsets(settings, answer_seconds=5.0) as offsets,
        pytest.raises(BrokerUnavailableError) as refused,
    ):
        offsets.latest(topic)
    return str(refused.value)


def test_a_wrong_password_is_told(reader: Factory) -> None:
    """Whatever kafka-python sees of the refusal."""
    assert "refuse this client" in refusal(reader(kafka_password="guess"))


def test_an_unknown_authority_is_told(reader: Factory, tmp_path: Path) -> None:
    """The broker's certificate is of none that the client knows."""
    other = Authority(tmp_path / "other")
    said = refusal(reader(kafka_ca_file=other.certificate))
    assert "refuse this client" in said
    assert "certificate verify failed" in said


def test_an_expired_certificate_is_told(broker_: SecuredBroker, by_certificate: Settings) -> None:
    """The broker refuses a client's by an alert."""
    expired = broker_.authority.issue("expired", expired=True)
    files = {"kafka_certificate_file": expired.certificate, "kafka_key_file": expired.key}
    said = refusal(by_certificate.model_copy(update=files))
    assert "refuse this client" in said
    assert "certificate unknown" in said  # as Java words the alert


def test_a_client_without_tls_is_told(reader: Factory) -> None:
    """It speaks to a port that has TLS."""
    assert "refuse this client" in refusal(reader(kafka_security_protocol="PLAINTEXT"))


def test_a_topic_that_the_account_may_not_see_is_told(reader: Factory) -> None:
    """The broker does not say whether it is there."""
    with (
        TopicOffsets(reader()) as offsets,
        pytest.raises(UnknownTopicError, match="let the account describe it"),
    ):
        offsets.latest(CLOSED)


def test_repaired_letters_go_back_with_the_rights_that_are_documented(
    broker_: SecuredBroker, reader: Factory
) -> None:
    """docs/how-to/secured-kafka.md lists them. One that lacks is named, and nothing is sent."""
    topic = "with-dead-letters"
    stock_stats = catalog.load(project_root() / "include" / "pipelines")["stock_stats"]
    with KafkaAdminClient(**broker_.admin_options()) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        marks = ResourcePattern(ResourceType.TOPIC, MARKS)
        for each in (ResourcePattern(ResourceType.TOPIC, topic), marks):
            allow(admin, each, "WRITE", "DESCRIBE", "CREATE", "READ")
        runs = ResourcePattern(
            ResourceType.TRANSACTIONAL_ID, "hindcast-mend-", ACLResourcePatternType.PREFIXED
        )
        allow(admin, runs, "WRITE", "DESCRIBE")
        producer = KafkaProducer(**broker_.admin_options())
        producer.send(topic, key=b"k", value=b"torn")
        producer.close()
        installation = Installation(reader())
        row = {"pipeline": stock_stats.name, "topic": topic, "partition": 0, "offset": 0, "key": b"k"}
        row |= {"value": b"torn", "broker_at": datetime.now(UTC)}
        installation.tables.append(ControlTable.DEAD_LETTERS, [row])
        letters = [Repaired((topic, 0, 0), b"{}")]
        with pytest.raises(BadInputError, match="DescribeConfigs"):
            redrive(installation, stock_stats, letters)
        with TopicOffsets(reader()) as offsets:
            assert offsets.latest(topic) == {0: 1}
        allow(admin, marks, "DESCRIBE_CONFIGS")
        assert redrive(installation, stock_stats, letters) == (1, 0)
        assert redrive(installation, stock_stats, letters) == (0, 1)


def allow(admin: KafkaAdminClient, resource: ResourcePattern, *operations: str) -> None:
    """Allow the reader's account these operations."""
    user = f"User:{READER[0]}"
    allowed = ACLPermissionType.ALLOW
    admin.create_acls([ACL(user, "*", ACLOperation[each], allowed, resource) for each in operations])


def test_the_doctor_asks_the_brokers(reader: Factory) -> None:
    """That they answer, or why they do not."""
    found = {finding.what: finding for finding in examine(reader())}["broker"]
    assert (found.state, found.found.endswith("answers: 1 brokers")) == (State.OK, True)
    found = {finding.what: finding for finding in examine(reader(kafka_password="guess"))}["broker"]
    assert (found.state, "refuse this client" in found.cure) == (State.WARNING, True)
