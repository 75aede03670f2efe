"""What a user declares: a pipeline is one pure transformation between a topic and a table, and the rules of its time.

This module imports neither pyspark nor airflow: declaring and listing pipelines is cheap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hindcast.errors import BadNameError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DURATION = re.compile(r"\s*(\d+)\s+(millisecond|second|minute|hour|day)s?\s*")
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_NULL = re.compile(r"\s+not\s+null$")
#: Types that a topic's JSON may be read as; nested types are parsed by Spark alone and are given as they stand.
TYPES = frozenset(
    {
        "string",
        "boolean",
        "byte",
        "tinyint",
        "short",
        "smallint",
        "int",
        "integer",
        "long",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
        "binary",
    }
)
EVENT_TIME_TYPES = frozenset({"timestamp"})
#: Columns that the platform adds to the source's frame; a topic's schema may not use them.
RESERVED = frozenset({"window", "_topic", "_partition", "_offset", "_timestamp", "_value", "_key", "_reason"})
#: More than any topic has partitions that one fleet could use.
MAX_SHARDS = 1000
#: A pipeline's partitions are numbered across its topics: partition 3 of its second topic is 10_003.
TOPIC_STRIDE = 10_000
FORM = (
    '@pipeline(source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"), event_time="ts", '
    'watermark="10 seconds", window=Window("5 seconds", slide="1 second"), sink=Table("stock_stats", keys=["window", "ticker"]), version=1)'
)


def check_name(what: str, name: str) -> str:
    """Return the name; raise :class:`BadNameError` where it is not ``[A-Za-z0-9._-]{1,64}`` or is only dots."""
    if not NAME.fullmatch(name) or not name.strip("."):
        raise BadNameError(what=what, name=name)
    return name


def parse_duration(text: str) -> timedelta:
    """``"10 seconds"`` as a timedelta; ValueError names the valid form."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f'{text!r} is not a duration like "10 seconds", "500 milliseconds" or "1 hour"')
    return timedelta(**{match[2] + "s": int(match[1])})


def parse_columns(schema: str) -> dict[str, str]:
    """The columns of a DDL schema, name to type in lower case, in order; ValueError says what is wrong with it."""
    columns: dict[str, str] = {}
    for part in _split_columns(schema):
        name, _, kind = part.strip().partition(" ")
        kind = NOT_NULL.sub("", kind.strip().lower())
        if not COLUMN.fullmatch(name) or not kind:
            raise ValueError(f"the schema's column {part.strip()!r} is not of the form `name type`")
        base = re.split(r"[<(]", kind, maxsplit=1)[0].strip()
        if base not in TYPES | {"decimal", "array", "map", "struct"}:
            raise ValueError(f"the schema's column {name!r} has the unknown type {kind!r}")
        if name in columns:
            raise ValueError(f"the schema names the column {name!r} twice")
        columns[name] = kind
    return columns


def required_columns(schema: str) -> list[str]:
    """The columns that are declared ``NOT NULL``."""
    return [part.split()[0] for part in _split_columns(schema) if NOT_NULL.search(part.strip().lower())]


def _split_columns(schema: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(schema):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            yield schema[start:position]
            start = position + 1
    yield schema[start:]


@dataclass(frozen=True)
class Topic:
    """A Kafka topic of JSON objects. ``schema`` is Spark DDL; ``key`` is the field by which producers choose the partition.

    A record without a value for a ``NOT NULL`` column goes to the dead letters; any other column may be null or missing.
    """

    name: str
    schema: str
    key: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        return parse_columns(self.schema)

    @property
    def required(self) -> list[str]:
        return required_columns(self.schema)


@dataclass(frozen=True)
class Window:
    """Event-time windows of ``duration``, one beginning each ``slide`` (default: one after the other)."""

    duration: str
    slide: str | None = None

    @property
    def length(self) -> timedelta:
        return parse_duration(self.duration)

    @property
    def step(self) -> timedelta:
        return parse_duration(self.slide or self.duration)


@dataclass(frozen=True)
class Table:
    """A Delta table; ``keys`` are the columns that name one row of the result."""

    name: str
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One declared pipeline, equal only to itself.

    ``transform`` takes the parsed source (with the ``window`` column) and returns the result frame.
    """

    name: str
    transform: Callable[[DataFrame], DataFrame]
    source: Topic
    event_time: str
    watermark: str
    sink: Table
    version: int
    window: Window | None = None
    shards: int = 1
    max_future: str = "1 hour"
    captured_floor: float = 0.0
    expectations: tuple[dict[str, Any], ...] = ()
    file: str = ""
    line: int = 0
    source_code: str = ""

    @property
    def watermark_delay(self) -> timedelta:
        return parse_duration(self.watermark)

    @property
    def future_limit(self) -> timedelta:
        return parse_duration(self.max_future)


#: Where :func:`pipeline` puts what it declares while a module is being loaded (see :mod:`hindcast.catalog`).
declared: ContextVar[list[Pipeline] | None] = ContextVar("declared", default=None)


def pipeline(
    *,
    source: Topic,
    event_time: str,
    watermark: str,
    sink: Table,
    version: int,
    window: Window | None = None,
    shards: int = 1,
    max_future: str = "1 hour",
    captured_floor: float = 0.0,
    expectations: list[dict[str, Any]] | None = None,
) -> Callable[[Callable[[DataFrame], DataFrame]], Pipeline]:
    """Declare the decorated function as a pipeline of the function's own name.

    :param source: the topic that is read
    :param event_time: the source's column of type timestamp that says when a row happened
    :param watermark: how long after the newest event time seen a row still counts, e.g. ``"10 seconds"``
    :param window: the event-time windows; the platform assigns the ``window`` column, the function groups by it
    :param sink: the table of the result; ``keys`` must be among the function's result columns
    :param version: rises with each change of the function's meaning
    :param shards: into how many shards the partitions are dealt; above 1 the keys must contain the topic's key
    :param max_future: a row stamped further than this past the broker's timestamp is a dead letter
    :param captured_floor: the least share of input rows the stream must hold for a verdict to pass, 0 to 1
    :param expectations: Great Expectations on the sink, each ``{"type": ..., **kwargs}``
    :raises PipelineError: with file, line and the valid form, where a part of the declaration is wrong
    """

    def declare(transform: Callable[[DataFrame], DataFrame]) -> Pipeline:
        code = transform.__code__
        result = Pipeline(
            name=transform.__name__,
            transform=transform,
            source=source,
            event_time=event_time,
            watermark=watermark,
            sink=sink,
            version=version,
            window=window,
            shards=shards,
            max_future=max_future,
            captured_floor=captured_floor,
            expectations=tuple(expectations or ()),
            file=code.co_filename,
            line=code.co_firstlineno,
            source_code=_source_of(transform),
        )
        check(result)
        found = declared.get()
        if found is not None:
            found.append(result)
        return result

    return declare


def check(pipeline: Pipeline) -> None:
    """Raise :class:`PipelineError` for the first thing that is wrong with the declaration."""
    for problem in _problems(pipeline):
        raise PipelineError(file=pipeline.file, line=pipeline.line, pipeline=pipeline.name, problem=problem, form=FORM)


def _problems(p: Pipeline) -> Iterator[str]:
    for what, name in (("pipeline", p.name), ("topic", p.source.name), ("table", p.sink.name)):
        if not NAME.fullmatch(name) or not name.strip("."):
            yield f"the {what}'s name {name!r} is not 1 to 64 of A-Z a-z 0-9 . _ -"
    for text in (p.watermark, p.max_future, *((p.window.duration, p.window.slide or p.window.duration) if p.window else ())):
        try:
            parse_duration(text)
        except ValueError as error:
            yield str(error)
    try:
        columns = p.source.columns
    except ValueError as error:
        yield str(error)
        return
    if reserved := sorted(RESERVED & columns.keys()):
        yield f"the schema uses the reserved columns {reserved}"
    if columns.get(p.event_time) not in EVENT_TIME_TYPES:
        yield f"event_time {p.event_time!r} is not a timestamp column of the schema ({', '.join(columns)})"
    if p.source.key is not None and p.source.key not in columns:
        yield f"the topic's key {p.source.key!r} is not a column of the schema ({', '.join(columns)})"
    if p.window and not timedelta(0) < p.window.step <= p.window.length:
        yield f"the window's slide {p.window.slide!r} is not above 0 and at most its duration {p.window.duration!r}"
    if p.window and "window" not in p.sink.keys:
        yield "the sink's keys lack 'window', so rows of different windows would share a key"
    if p.version < 1:
        yield f"version {p.version!r} is not a whole number from 1"
    if not 1 <= p.shards <= MAX_SHARDS:
        yield f"shards {p.shards!r} is not from 1 to {MAX_SHARDS}"
    if p.shards > 1 and p.window and (p.source.key is None or p.source.key not in p.sink.keys):
        rule = f"the sink's keys {p.sink.keys} must contain the topic's key {p.source.key!r}, else each shard would hold part of a key"
        yield f"with shards={p.shards} {rule}; use shards=1"
    if not 0.0 <= p.captured_floor <= 1.0:
        yield f"captured_floor {p.captured_floor!r} is not from 0 to 1"


def _source_of(function: Callable[..., Any]) -> str:
    import inspect

    try:
        return inspect.getsource(function)
    except OSError:  # defined in an interactive session
        return ""
