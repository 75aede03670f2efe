"""The rules of a declaration. All its mistakes are listed at once, each with a valid form."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hindcast.ddl import Type
from hindcast.errors import PipelineError, together
from hindcast.pipeline import (
    CONTROL_TABLES,
    EVENT_TIME_TYPES,
    FORM,
    MAX_SHARDS,
    NAME,
    RESERVED,
    TOPIC_NAME,
    Format,
    Lookup,
    Metadata,
    Mode,
    Pipeline,
    Policy,
    Served,
    Table,
    Topic,
    Window,
    parse_duration,
    parse_start,
)

_JOINED_FORM = 'joined=[Topic("searches", schema="..."), Lookup("countries", 3)]'
_KEYS_FORM = 'sink=Table("stock_stats", keys=["window", "ticker"])'
_LATE_FORM = 'late=handle_late, late_sink=Table("too_late")'
_REFERENCE_FORM = "reference=('{\"0\": 0}', '{\"0\": 500000}')"
_SCHEMA_FORM = 'schema="ticker string NOT NULL, ts timestamp, ask decimal(10, 2)"'
_START_FORM = 'start="earliest", start="2026-01-05T12:00:00+00:00" or start=\'{"0": 100}\''
_TEXT_FORM = 'Topic("lines", schema="...", format="text", parse=from_line)'
_RATIO_FORM = 'ratio_bound={"trucks": 1.7}'
_TOLERANCE_FORM = 'tolerance={"avg_ask": 1e-6}'
_CHANGED_FORM = "changed_at_most=0.01"
_PROTOBUF_FORM = (
    'Topic("records", schema="...", format="protobuf", message="shop.Order", descriptor=DESCRIPTOR)'
)
_AVRO_FORM = 'Topic("records", schema="...", format="avro", avro_schema=AVRO_SCHEMA)'

_Part = TypeVar("_Part", Pipeline, Topic, Table, Window, Served)


class Problem(NamedTuple):
    """One mistake. ``field`` is the argument, e.g. ``source.schema``; ``form`` is a valid form of it."""

    field: str
    says: str
    form: str = FORM


class _Kind(NamedTuple):
    """The types of an argument, their name in words, a stand-in for a wrong value while the others are
    checked, and a valid form.
    """

    types: type | tuple[type, ...]
    words: str
    stand_in: Any
    form: str


_SERVED_FORM = 'Table("stock_stats", keys=["window", "ticker"], served=Served(partition_by=["day"]))'
_DELETED_FORM = 'Table("customers", keys=["id"], mode="upsert", deleted="is_deleted")'
_PIPELINE_KINDS = {
    "source": _Kind(
        Topic, "a Topic", Topic("t", "ts timestamp"), 'source=Topic("trades", schema="ts timestamp")'
    ),
    "event_time": _Kind(str, "a column's name", "", 'event_time="ts"'),
    "watermark": _Kind(str, "a duration", "1 second", 'watermark="10 seconds"'),
    "sink": _Kind(Table, "a Table", Table("t"), 'sink=Table("stock_stats", keys=["window", "ticker"])'),
    "version": _Kind(int, "a whole number", 1, "version=1"),
    "window": _Kind((Window, type(None)), "a Window", None, 'window=Window("5 seconds", slide="1 second")'),
    "shards": _Kind(int, "a whole number", 1, "shards=2"),
    "max_future": _Kind(str, "a duration", "1 hour", 'max_future="1 hour"'),
    "start": _Kind(str, "a text", "earliest", _START_FORM),
    "late_sink": _Kind((Table, type(None)), "a Table", None, _LATE_FORM),
    "policy": _Kind(
        Policy, "one of report and correct", Policy.REPORT, 'policy="report" or policy="correct"'
    ),
    "captured_floor": _Kind((int, float), "a number", 0.0, "captured_floor=0.99"),
    "ratio_bound": _Kind(dict, "a dictionary of columns and numbers", {}, _RATIO_FORM),
    "tolerance": _Kind(dict, "a dictionary of columns and numbers", {}, _TOLERANCE_FORM),
    "changed_at_most": _Kind((int, float, type(None)), "a number", None, _CHANGED_FORM),
    "foreign_checkpoint": _Kind(str, "a path or URL", "", 'checkpoint="/lake/checkpoints/stock_stats"'),
}
_TOPIC_KINDS = {
    "name": _Kind(str, "a text", "t", 'Topic("trades", ...)'),
    "schema": _Kind(str, "a text", "ts timestamp", _SCHEMA_FORM),
    "key": _Kind((str, type(None)), "a column's name", None, 'key="ticker"'),
    "format": _Kind(
        Format,
        "one of json, text, avro and protobuf",
        Format.JSON,
        'format="json", format="text", format="avro" or format="protobuf"',
    ),
    "avro_schema": _Kind(str, "a text", "", _AVRO_FORM),
    "descriptor": _Kind(bytes, "bytes", b"", _PROTOBUF_FORM),
    "message": _Kind(str, "a text", "", _PROTOBUF_FORM),
    "registry": _Kind(bool, "True or False", False, "registry=True"),
    "metadata": _Kind((list, tuple), "a list of key and headers", (), 'metadata=["key", "headers"]'),
    "tombstones": _Kind(bool, "True or False", False, "tombstones=True"),
    "event_time": _Kind(
        str, "a column's name", "", 'Topic("searches", schema="at timestamp", event_time="at")'
    ),
}
_TABLE_KINDS = {
    "name": _Kind(str, "a text", "t", 'Table("stock_stats", ...)'),
    "keys": _Kind((list, tuple), "a list of columns", [], 'keys=["window", "ticker"]'),
    "mode": _Kind(Mode, "one of append and upsert", Mode.APPEND, 'mode="append" or mode="upsert"'),
    "deleted": _Kind(str, "a column's name", "", _DELETED_FORM),
    "url": _Kind(str, "a path or URL", "", 'url="s3://lake/stock_stats"'),
    "served": _Kind((Served, type(None)), "a Served", None, _SERVED_FORM),
}
_SERVED_KINDS = {
    "partition_by": _Kind((list, tuple), "a list of columns", (), _SERVED_FORM),
    "comment": _Kind(str, "a text", "", 'Served(comment="Prices by ticker and window")'),
    "comments": _Kind(
        dict, "a dictionary of columns and texts", {}, 'Served(comments={"ask": "in dollars"})'
    ),
    "properties": _Kind(
        dict, "a dictionary of texts", {}, 'Served(properties={"delta.enableChangeDataFeed": "true"})'
    ),
    "url": _Kind(str, "a path or URL", "", 'Served(url="s3://lake/stock_stats")'),
}
#: Properties of Delta that would change how a table's files are read, or forbid to remove one.
_NOT_OF_SERVED = ("delta.appendOnly", "delta.columnMapping.mode", "delta.enableDeletionVectors")
#: The types of columns by which a table may be partitioned, as Spark shows them.
_PARTITION_TYPES = frozenset({"string", "tinyint", "smallint", "int", "bigint", "date", "boolean"})
_WINDOW_KINDS = {
    "duration": _Kind(str, "a duration", "1 second", 'Window("5 seconds", slide="1 second")'),
    "slide": _Kind((str, type(None)), "a duration", None, 'Window("5 seconds", slide="1 second")'),
}


def problems(p: Pipeline) -> Iterator[Problem]:
    """Each mistake of the declaration."""
    readable, found = _readable(p)
    yield from found
    yield from _of_names(readable)
    for field, topic in _named_topics(readable):
        yield from _of_topic(readable, topic, field)
    names = {topic.name for topic in readable.topics}
    if len(names) < len(readable.topics):
        says = "a topic is named twice among the source and the joined topics"
        says += "; join the frame with itself in the function"
        yield Problem("joined", says, _JOINED_FORM)
    yield from _of_window(readable)
    yield from _of_late(readable)
    yield from _of_served(readable)
    yield from _of_shards(readable)
    yield from _of_numbers(readable)
    yield from _of_bounds(readable)
    yield from _of_places(readable)
    try:
        parse_start(readable.start)
    except ValueError as error:
        yield Problem("start", str(error), _START_FORM)
    if readable.reference is not None:
        yield from _of_reference(readable.reference)


def _named_topics(p: Pipeline) -> Iterator[tuple[str, Topic]]:
    """Each topic with the argument that declares it."""
    first, *others = p.topics
    yield "source", first
    for topic in others:
        yield "joined", topic


def _readable(p: Pipeline) -> tuple[Pipeline, list[Problem]]:
    """The declaration with a stand-in for each argument of a wrong type, so that the others can be checked.

    :returns: it, and a problem for each such argument
    """
    found: list[Problem] = []
    p = _of_kinds(p, _PIPELINE_KINDS, "", found)
    p = replace(p, joined=_readable_joined(p.joined, found))
    source = _of_kinds(p.source, _TOPIC_KINDS, "source", found)
    sink = _of_kinds(p.sink, _TABLE_KINDS, "sink", found)
    if sink.served is not None:
        sink = replace(sink, served=_of_kinds(sink.served, _SERVED_KINDS, "sink.served", found))
    p = replace(p, source=source, sink=sink)
    if p.late_sink is not None:
        p = replace(p, late_sink=_of_kinds(p.late_sink, _TABLE_KINDS, "late_sink", found))
    if p.window is not None:
        p = replace(p, window=_readable_window(p.window, found))
    for name in ("watermark", "max_future"):
        p = _of_duration(p, name, _PIPELINE_KINDS[name], "", found)
    return p, found


def _readable_joined(joined: tuple[object, ...], found: list[Problem]) -> tuple[Topic | Lookup, ...]:
    if not all(isinstance(one, Topic | Lookup) for one in joined):
        says = "joined= is not a list of Topics and Lookups"
        found.append(Problem("joined", says, 'joined=[Topic("searches", schema="...")]'))
        return ()
    readable: list[Topic | Lookup] = []
    for one in joined:
        if isinstance(one, Topic):
            readable.append(_of_kinds(one, _TOPIC_KINDS, "joined", found))
        elif isinstance(one, Lookup):
            readable.append(one)
    return tuple(readable)


def _readable_window(declared: Window, found: list[Problem]) -> Window:
    window = _of_kinds(declared, _WINDOW_KINDS, "window", found)
    readable = window
    for name in ("duration", "slide"):
        readable = _of_duration(readable, name, _WINDOW_KINDS[name], "window", found)
    if readable != window:
        return Window("1 second")  # with a stand-in for one of them, the two cannot be compared
    return readable


def _of_kinds(part: _Part, kinds: dict[str, _Kind], prefix: str, found: list[Problem]) -> _Part:
    for name, kind in kinds.items():
        value = getattr(part, name)
        a_bool_as_number = isinstance(value, bool) and kind.types is int
        if isinstance(value, kind.types) and not a_bool_as_number:
            continue
        place = f"{prefix}.{name}".strip(".")
        found.append(Problem(place, f"{place} {value!r} is not {kind.words}", kind.form))
        part = replace(part, **{name: kind.stand_in})
    return part


def _of_duration(part: _Part, name: str, kind: _Kind, prefix: str, found: list[Problem]) -> _Part:
    text = getattr(part, name)
    if text is None:
        return part
    try:
        parse_duration(text)
    except (ValueError, OverflowError) as error:
        found.append(Problem(f"{prefix}.{name}".strip("."), str(error), kind.form))
        return replace(part, **{name: kind.stand_in})
    return part


def _of_names(p: Pipeline) -> Iterator[Problem]:
    yield from _of_name("", "pipeline", p.name)
    tables = {"sink": p.sink}
    if p.late_sink is not None:
        tables["late_sink"] = p.late_sink
    for field, table in tables.items():
        yield from _of_name(field, "table", table.name)
    for one in p.joined:
        if isinstance(one, Lookup) and "/" not in one.name:
            yield from _of_name("joined", "lookup", one.name)
    for field, topic in _named_topics(p):
        if not TOPIC_NAME.fullmatch(topic.name):
            says = f"the topic's name {topic.name!r} is not 1 to 249 of A-Z a-z 0-9 . _ -, or it is . or .."
            yield Problem(field, says, 'Topic("trades", ...)')
    folded = {field: table.name.casefold() for field, table in tables.items()}
    if len(set(folded.values())) < len(folded):
        says = f"the sink and late_sink are one table, {p.sink.name!r}"
        says += ": give the late rows a table of their own"
        yield Problem("late_sink", says, 'late_sink=Table("too_late")')
    for field, table in tables.items():
        if folded[field] in CONTROL_TABLES:
            known = ", ".join(sorted(CONTROL_TABLES))
            says = f"the table's name {table.name!r} is that of one of the platform's own tables ({known})"
            yield Problem(field, says, _KEYS_FORM)


def _of_name(field: str, what: str, name: str) -> Iterator[Problem]:
    if not NAME.fullmatch(name) or not name.strip("."):
        says = f"the {what}'s name {name!r} is not 1 to 64 of A-Z a-z 0-9 . _ -"
        yield Problem(field, says, f"{what} names like stock_stats")


def _of_window(p: Pipeline) -> Iterator[Problem]:
    if p.sink.mode is Mode.UPSERT and not p.sink.keys:
        says = "an upsert table needs keys: the columns that name one row of the result"
        yield Problem("sink.keys", says, _KEYS_FORM)
    if p.sink.deleted and p.sink.mode is not Mode.UPSERT:
        says = "only an upsert deletes rows: an append keeps each row for good"
        yield Problem("sink.deleted", says, _DELETED_FORM)
    if p.sink.deleted in p.sink.keys:
        says = f"the table lacks {p.sink.deleted!r}, the column that says a row is deleted: it is no key"
        yield Problem("sink.deleted", says, _DELETED_FORM)
    if p.policy is Policy.CORRECT and p.window is None:
        says = "policy 'correct' needs a window: only windows that are closed are corrected"
        yield Problem("policy", says, 'policy="report"')
    if p.window is None:
        return
    if not timedelta(0) < p.window.step <= p.window.length:
        says = f"the window's slide {p.window.slide!r} is not above 0"
        says += f" and at most its duration {p.window.duration!r}"
        yield Problem("window", says, _WINDOW_KINDS["slide"].form)
    if "window" not in p.sink.keys:
        says = "the sink's keys lack 'window', so rows of different windows would share a key"
        yield Problem("sink.keys", says, _KEYS_FORM)
    if p.joined or p.re_execute or p.sink.mode is not Mode.APPEND:
        says = "a window is declared for one source, appended and judged by the late rule"
        says += "; for anything else call F.window in the function"
        yield Problem("window", says)


def _of_late(p: Pipeline) -> Iterator[Problem]:
    if (p.late is None) != (p.late_sink is None):
        says = "late rows need both late= and late_sink=, or neither: they are in late_rows anyway"
        yield Problem("late", says, _LATE_FORM)
    if p.late is not None and (len(p.topics) > 1 or not (p.window or p.re_execute)):
        says = "only a pipeline of one topic, with a window or re_execute=True, has late rows to handle"
        yield Problem("late", says, _LATE_FORM)


def _of_served(p: Pipeline) -> Iterator[Problem]:
    if p.late_sink is not None and p.late_sink.served is not None:
        says = "what readers get of a pipeline is one table: that of the sink, not of late rows"
        yield Problem("late_sink", says, _LATE_FORM)
    if p.sink.served is None:
        return
    for name in _NOT_OF_SERVED:
        if name in p.sink.served.properties:
            says = f"the property {name} would keep corrections out of the served table"
            yield Problem("sink.served", says, _SERVED_FORM)


def _of_shards(p: Pipeline) -> Iterator[Problem]:
    if not 1 <= p.shards <= MAX_SHARDS:
        yield Problem("shards", f"shards {p.shards!r} is not from 1 to {MAX_SHARDS}", "shards=2")
    if p.shards <= 1:
        return
    keyed = p.window or p.re_execute or p.sink.mode is Mode.UPSERT
    if keyed and (p.source.key is None or p.source.key not in p.sink.keys):
        rule = f"the sink's keys {p.sink.keys} must contain the topic's key {p.source.key!r}"
        reason = "else each shard would hold part of a key"
        yield Problem("shards", f"with shards={p.shards} {rule}, {reason}; use shards=1", "shards=1")
    if any(topic.key is None for topic in p.topics):
        says = f"with shards={p.shards} each topic must be partitioned by the key"
        says += ": give each its key=, or use shards=1"
        yield Problem("shards", says, 'Topic("trades", schema="...", key="ticker")')


def _of_numbers(p: Pipeline) -> Iterator[Problem]:
    if p.version < 1:
        yield Problem("version", f"version {p.version!r} is not a whole number from 1", "version=1")
    if not 0.0 <= p.captured_floor <= 1.0:
        says = f"captured_floor {p.captured_floor!r} is not from 0 to 1"
        yield Problem("captured_floor", says, "captured_floor=0.99")


def _of_places(p: Pipeline) -> Iterator[Problem]:
    """Of the places outside of the root of all tables, which have to be named whole."""
    places = {"sink.url": p.sink.url}
    if p.is_foreign:
        places = {"table": p.sink.url, "checkpoint": p.foreign_checkpoint}
    elif not p.sink.url:
        return
    for field, place in places.items():
        if not ("://" in place or place.startswith("/")):
            says = f"the {field} {place!r} is neither a URL nor an absolute path"
            name = field.rpartition(".")[2]
            yield Problem(field, says, f'{name}="/lake/stock_stats" or {name}="s3://lake/stock_stats"')


def _of_bounds(p: Pipeline) -> Iterator[Problem]:
    for column, bound in p.ratio_bound.items():
        if not _is_number(bound) or bound < 1:
            says = f"the ratio_bound {bound!r} of {column!r} is not a number from 1"
            says += ": hindsight has the least cost, so that no bound is below 1"
            yield Problem("ratio_bound", says, _RATIO_FORM)
    for column, greatest in p.tolerance.items():
        if not _is_number(greatest) or greatest <= 0:
            says = f"the tolerance {greatest!r} of {column!r} is not a number above 0, in the column's unit"
            yield Problem("tolerance", says, _TOLERANCE_FORM)
    for field, form, columns in _bounded_columns(p):
        yield from _of_bounded_columns(p, field, form, columns)
    most = p.changed_at_most
    if most is not None and not (_is_number(most) and 0 <= most <= 1):
        yield Problem("changed_at_most", f"changed_at_most {most!r} is not from 0 to 1", _CHANGED_FORM)


def _bounded_columns(p: Pipeline) -> Iterator[tuple[str, str, list[object]]]:
    """Each argument that names columns of the result, a valid form of it, and those columns."""
    yield "ratio_bound", _RATIO_FORM, list(p.ratio_bound)
    yield "tolerance", _TOLERANCE_FORM, list(p.tolerance)


def _of_bounded_columns(p: Pipeline, field: str, form: str, columns: list[object]) -> Iterator[Problem]:
    if columns and not p.compares_by_key:
        says = f"{field} needs rows that are compared by their keys; without a window, re_execute=True and"
        yield Problem(field, f"{says} mode='upsert' whole rows are compared", form)
        return
    for column in columns:
        if not isinstance(column, str) or not column:
            yield Problem(field, f"{field} names the column {column!r}, which is not a text", form)
        elif column in p.sink.keys:
            says = f"{field} names {column!r}, which is one of the sink's keys: keys identify rows"
            yield Problem(field, f"{says}, and are compared exactly", form)


def _is_number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


#: The types that are numbers, as Spark shows them, without what stands in brackets.
_NUMERIC_TYPES = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})


def check_bounded_columns(p: Pipeline, types: Mapping[str, str]) -> None:
    """Refuse bounds of columns that the result does not have, or that are no numbers.

    :param types: the result's columns, each with its type as Spark shows it
    :raises PipelineError: with the lines of the bounds, and the columns that may have one
    """
    numeric = []
    for name, kind in types.items():
        if _is_numeric(kind) and name not in p.sink.keys:
            numeric.append(name)
    errors = []
    for field, form, columns in _bounded_columns(p):
        for column in columns:
            if column in numeric:
                continue
            says = f"{field} names {column!r}, which is no numeric column of the result"
            says += f"; those are: {', '.join(numeric) or 'none'}"
            line = line_of(p, field)
            errors.append(PipelineError(file=p.file, line=line, pipeline=p.name, problem=says, form=form))
    if errors:
        raise together(errors)


def check_served_columns(p: Pipeline, types: Mapping[str, str]) -> None:
    """Refuse a served table with columns that the result does not have, or partitioned by one that may not
    be.

    :param types: the result's columns, each with its type as Spark shows it
    :raises PipelineError: with the line of the sink, and the columns that there are
    """
    served = p.sink.served
    if served is None:
        return
    errors = []
    for name in [*served.partition_by, *served.comments]:
        says = ""
        if name not in types:
            says = f"served names {name!r}, which is no column of the result: {', '.join(types)}"
        elif name in served.partition_by and types[name] not in _PARTITION_TYPES:
            says = f"served is partitioned by {name!r}, which is {types[name]}"
            says += "; it may be a text, a whole number, a date or a truth value"
        if says:
            error = PipelineError(
                file=p.file, line=line_of(p, "sink.served"), pipeline=p.name, problem=says, form=_SERVED_FORM
            )
            errors.append(error)
    if errors:
        raise together(errors)


def _is_numeric(kind: str) -> bool:
    return kind.partition("(")[0] in _NUMERIC_TYPES


def _of_reference(reference: tuple[str, str]) -> Iterator[Problem]:
    try:
        first, last = map(parse_start, reference)
    except (TypeError, ValueError) as error:
        says = f"the reference {reference!r} is not two ends of a range: {error}"
        yield Problem("reference", says, _REFERENCE_FORM)
        return
    if not _is_range(first, last):
        rule = "two times, or offsets of the same partitions, the first end before the other"
        says = f"the reference {reference!r} is not a range: {rule}"
        yield Problem("reference", says, _REFERENCE_FORM)


def _is_range(first: str | datetime | dict[int, int], last: str | datetime | dict[int, int]) -> bool:
    if isinstance(first, datetime) and isinstance(last, datetime):
        return first < last
    if not isinstance(first, dict) or not isinstance(last, dict):
        return False
    if first.keys() != last.keys() or first == last:
        return False
    return all(first[partition] <= last[partition] for partition in first)


#: Types of Spark's grammar that no record's field can be read as, and the types to use instead.
_UNREADABLE = {
    "char": "string",
    "varchar": "string",
    "void": "the type that its values have, or leave the column out",
    "geometry": "binary",
    "geography": "binary",
    "time": "string",
    # Without units Spark reads an invalid interval as null.
    "interval": "interval day to second, or interval year to month",
}


def _of_topic(p: Pipeline, topic: Topic, field: str) -> Iterator[Problem]:
    yield from _of_format(topic, field)
    schema = f"{field}.schema"
    try:
        columns = topic.columns
    except ValueError as error:
        says = f"the schema of the topic {topic.name} is not Spark's DDL: {error}"
        yield Problem(schema, says, _SCHEMA_FORM)
        return
    for says in _of_columns(topic):
        yield Problem(schema, says, _SCHEMA_FORM)
    reserved = sorted(name for name in columns if name.casefold() in RESERVED)
    if reserved:
        yield Problem(schema, f"the schema uses the reserved columns {reserved}", _SCHEMA_FORM)
    known = ", ".join(columns)
    event_time = p.event_time_of(topic)
    if columns.get(event_time) not in EVENT_TIME_TYPES:
        says = f"event_time {event_time!r} is not a timestamp column of the schema ({known})"
        place = "event_time"
        if field == "joined":
            place = "joined"
        yield Problem(place, says, _PIPELINE_KINDS["event_time"].form)
    yield from _of_record(p, topic, field)
    if topic.key is not None and topic.key not in columns:
        says = f"the topic's key {topic.key!r} is not a column of the schema ({known})"
        yield Problem(f"{field}.key", says, 'key="ticker"')


def _of_record(p: Pipeline, topic: Topic, field: str) -> Iterator[Problem]:
    """What the function asks for of the record."""
    unknown = sorted(str(word) for word in topic.metadata if word not in list(Metadata))
    if unknown:
        says = f"the metadata of the topic {topic.name} is key or headers, not {', '.join(unknown)}"
        yield Problem(f"{field}.metadata", says, _TOPIC_KINDS["metadata"].form)
    if topic.tombstones and p.window is not None:
        says = f"a tombstone of the topic {topic.name} has no event time, so it falls into no window"
        yield Problem(f"{field}.tombstones", says, "tombstones=True without a window")


def _of_format(topic: Topic, field: str) -> Iterator[Problem]:
    place = f"{field}.format"
    if (topic.format is Format.TEXT) != (topic.parse is not None):
        says = f"the topic {topic.name} needs both format=Format.TEXT and parse=, or neither"
        yield Problem(place, says, _TEXT_FORM)
    if (topic.format is Format.AVRO) != bool(topic.avro_schema):
        says = f"the topic {topic.name} needs both format=Format.AVRO and avro_schema=, or neither"
        yield Problem(place, says, _AVRO_FORM)
    of_protobuf = {topic.format is Format.PROTOBUF, bool(topic.message), bool(topic.descriptor)}
    if len(of_protobuf) > 1:
        says = f"the topic {topic.name} needs format=Format.PROTOBUF, message= and descriptor=, or none"
        yield Problem(place, says, _PROTOBUF_FORM)
    if topic.registry and topic.format is Format.TEXT:
        says = f"no schema registry has lines of text, so the topic {topic.name} has no registry=True"
        yield Problem(f"{field}.registry", says, 'format="json", registry=True')


def _of_columns(topic: Topic) -> Iterator[str]:
    seen: set[str] = set()
    for field in topic.fields:
        folded = field.name.casefold()
        if folded in seen:
            problem = f"the schema names the column {field.name!r} twice"
            yield f"{problem}; Spark does not tell names apart by their case"
        seen.add(folded)
        if not field.name:
            yield "the schema has a column without a name"
        for kind in field.type.every():
            yield from _of_type(topic, field.name, kind)


def _of_type(topic: Topic, column: str, kind: Type) -> Iterator[str]:
    whole_interval = kind.name == "interval" and kind.unit
    if kind.name in _UNREADABLE and not whole_interval:
        problem = f"the schema's column {column!r} has the type {kind}, which no record can be read as"
        yield f"{problem}; write {_UNREADABLE[kind.name]}"
    if kind.name == "map" and topic.format is Format.JSON and kind.elements[0].name != "string":
        problem = f"the schema's column {column!r} has a {kind}"
        yield f"{problem}: a JSON object's names are strings, so write map<string, ...>"


def line_of(p: Pipeline, field: str) -> int:
    """The line of an argument of the declaration, e.g. ``source.schema``. If it is not written there by its
    name, the line of the argument or the declaration around it.
    """
    try:
        tree = ast.parse(Path(p.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return p.line
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != p.name:
            continue
        decorators = node.decorator_list
        if not decorators or decorators[0].lineno != p.line:
            continue
        for decorator in decorators:
            if isinstance(decorator, ast.Call):
                return _line_in(decorator, field.split("."), p.line)
    return p.line


def _line_in(call: ast.Call, path: list[str], line: int) -> int:
    for keyword in call.keywords:
        if path and keyword.arg == path[0]:
            line = keyword.lineno
            if isinstance(keyword.value, ast.Call):
                return _line_in(keyword.value, path[1:], line)
    return line
