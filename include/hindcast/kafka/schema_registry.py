"""Schemas by the number that stands in front of a record's value.

The serializers of Confluent's Schema Registry, and of the registries that speak its REST interface, write a
zero byte, the schema's number in four bytes, the greatest first, and then the value. (Confluent
Documentation, "Formats, Serializers, and Deserializers", section "Wire format".)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from hindcast.errors import RegistryUnavailableError

_FIRST_BYTE = 0
_HEAD_BYTES = 5
_NOT_FOUND = 404
#: That a number is unknown is believed for so long before the registry is asked again.
_UNKNOWN_SECONDS = 60.0
#: The client waits for ever by default.
_ANSWER_SECONDS = 10


def divided(value: bytes) -> tuple[int, bytes] | None:
    """The schema's number and the rest of the value; None if no number stands in front of it."""
    if len(value) < _HEAD_BYTES or value[0] != _FIRST_BYTE:
        return None
    return int.from_bytes(value[1:_HEAD_BYTES], "big"), value[_HEAD_BYTES:]


class SchemaRegistry:
    """A registry's schemas. A number means the same schema for good, so each is asked for once."""

    def __init__(self, given: Mapping[str, Any], now: Callable[[], float] = time.monotonic) -> None:
        """:param given: settings of Confluent's client: ``url``, ``basic.auth.user.info``,
        ``ssl.ca.location`` and so on
        :raises RegistryUnavailableError: if the client does not take them
        """
        self._url = str(given.get("url", ""))
        self._now = now
        self._unknown: dict[int, float] = {}
        self._known: dict[int, Schema] = {}
        try:
            self._client = SchemaRegistryClient({"timeout": _ANSWER_SECONDS, **given})
        except Exception as error:
            raise self._unavailable("its client refuses these settings", error) from error

    def schema(self, number: int) -> Schema | None:
        """The schema of this number; None if the registry knows none.

        :raises RegistryUnavailableError: if it does not answer, or refuses to
        """
        known = self._known.get(number)
        if known is not None:
            return known
        asked_at = self._unknown.get(number)
        if asked_at is not None and self._now() - asked_at < _UNKNOWN_SECONDS:
            return None
        try:
            schema = self._client.get_schema(number)
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise self._unavailable(f"asked for schema {number}", error) from error
            self._unknown[number] = self._now()
            return None
        except Exception as error:  # it raises what its libraries for HTTP and OAuth raise
            raise self._unavailable(f"asked for schema {number}", error) from error
        self._known[number] = schema
        return schema

    def referred(self, schema: Schema) -> list[str]:
        """The texts of the schemas that this one refers to, each after those that it refers to itself.

        :raises RegistryUnavailableError: if the registry does not answer, or lacks one of them
        """
        texts = []
        for reference in schema.references or []:
            try:
                found = self._client.get_version(str(reference.subject), int(reference.version or 0))
            except Exception as error:
                asked = f"asked for version {reference.version} of {reference.subject}"
                raise self._unavailable(asked, error) from error
            texts += self.referred(found.schema)
            texts.append(str(found.schema.schema_str))
        return texts

    def _unavailable(self, asked: str, error: Exception) -> RegistryUnavailableError:
        return RegistryUnavailableError(url=self._url, asked=asked, reason=str(error) or type(error).__name__)
