"""What a declaration must keep to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from hindcast.pipeline import (
    CONTROL_TABLES,
    EVENT_TIME_TYPES,
    MAX_SHARDS,
    NAME,
    RESERVED,
    Format,
    Lookup,
    Mode,
    Pipeline,
    Policy,
    Topic,
    parse_duration,
    parse_start,
)


def problems(p: Pipeline) -> Iterator[str]:
    """Each thing that is wrong with the declaration, in words."""
    lookups = [joined.name for joined in p.joined if isinstance(joined, Lookup) and "/" not in joined.name]
    tables = [table.name for table in (p.sink, p.late_sink) if table]
    named = {"pipeline": [p.name], "topic": [topic.name for topic in p.topics], "table": tables, "lookup": lookups}
    for what, name in ((what, name) for what, names in named.items() for name in names):
        if not NAME.fullmatch(name) or not name.strip("."):
            yield f"the {what}'s name {name!r} is not 1 to 64 of A-Z a-z 0-9 . _ -"
    folded = [name.casefold() for name in tables]
    if len(set(folded)) < len(folded):
        yield f"the sink and late_sink are one table, {p.sink.name!r}: give the late rows a table of their own"
    for name in tables:
        if name.casefold() in CONTROL_TABLES:
            yield f"the table's name {name!r} is that of one of the platform's own tables ({', '.join(sorted(CONTROL_TABLES))})"
    for text in (p.watermark, p.max_future, *((p.window.duration, p.window.slide or p.window.duration) if p.window else ())):
        try:
            parse_duration(text)
        except ValueError as error:
            yield str(error)
    for topic in p.topics:
        yield from _of_topic(p, topic)
    if len({topic.name for topic in p.topics}) < len(p.topics):
        yield "a topic is named twice among the source and what it joins; join the frame with itself in the function"
    if p.window and not timedelta(0) < p.window.step <= p.window.length:
        yield f"the window's slide {p.window.slide!r} is not above 0 and at most its duration {p.window.duration!r}"
    if p.window and "window" not in p.sink.keys:
        yield "the sink's keys lack 'window', so rows of different windows would share a key"
    if p.window and (p.joined or p.re_execute or p.sink.mode is not Mode.APPEND):
        yield "a window is declared for one source, appended and judged by the late rule; for anything else call F.window in the function"
    if p.sink.mode is Mode.UPSERT and not p.sink.keys:
        yield "an upsert table needs keys: the columns that name one row of the result"
    if (p.late is None) != (p.late_sink is None):
        yield "late rows need both late= and late_sink=, or neither: they are in late_rows anyway"
    if p.late is not None and (len(p.topics) > 1 or not (p.window or p.re_execute)):
        yield "only a pipeline of one topic, with a window or re_execute=True, has late rows to handle"
    if p.policy is Policy.CORRECT and p.window is None:
        yield "policy 'correct' needs a window: only windows that are closed are corrected"
    if p.version < 1:
        yield f"version {p.version!r} is not a whole number from 1"
    if not 1 <= p.shards <= MAX_SHARDS:
        yield f"shards {p.shards!r} is not from 1 to {MAX_SHARDS}"
    keyed = p.window or p.re_execute or p.sink.mode is Mode.UPSERT
    if p.shards > 1 and keyed and (p.source.key is None or p.source.key not in p.sink.keys):
        rule = f"the sink's keys {p.sink.keys} must contain the topic's key {p.source.key!r}, else each shard would hold part of a key"
        yield f"with shards={p.shards} {rule}; use shards=1"
    if p.shards > 1 and any(topic.key is None for topic in p.topics):
        yield f"with shards={p.shards} each topic must be partitioned by the key: give each its key=, or use shards=1"
    if not 0.0 <= p.captured_floor <= 1.0:
        yield f"captured_floor {p.captured_floor!r} is not from 0 to 1"
    try:
        parse_start(p.start)
    except ValueError as error:
        yield str(error)
    if p.reference is not None:
        yield from _of_reference(p.reference)


def _of_reference(reference: tuple[str, str]) -> Iterator[str]:
    try:
        first, last = map(parse_start, reference)
    except (TypeError, ValueError) as error:
        yield f"the reference {reference!r} is not two ends of a range: {error}"
        return
    if isinstance(first, datetime) and isinstance(last, datetime):
        ordered = first < last
    elif isinstance(first, dict) and isinstance(last, dict):
        ordered = first.keys() == last.keys() and first != last and all(first[p] <= last[p] for p in first)
    else:
        ordered = False
    if not ordered:
        yield f"the reference {reference!r} is not a range: two times, or offsets of the same partitions, the first end before the other"


def _of_topic(p: Pipeline, topic: Topic) -> Iterator[str]:
    try:
        columns = topic.columns
    except ValueError as error:
        yield str(error)
        return
    if reserved := sorted(RESERVED & columns.keys()):
        yield f"the schema uses the reserved columns {reserved}"
    if columns.get(p.event_time_of(topic)) not in EVENT_TIME_TYPES:
        yield f"event_time {p.event_time_of(topic)!r} is not a timestamp column of the schema ({', '.join(columns)})"
    if topic.key is not None and topic.key not in columns:
        yield f"the topic's key {topic.key!r} is not a column of the schema ({', '.join(columns)})"
    if (topic.format is Format.TEXT) != (topic.parse is not None):
        yield f"the topic {topic.name} needs both format=Format.TEXT and parse=, or neither"
    if (topic.format is Format.AVRO) != bool(topic.avro_schema):
        yield f"the topic {topic.name} needs both format=Format.AVRO and avro_schema=, or neither"
