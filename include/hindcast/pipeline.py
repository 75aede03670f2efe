"""The declarations of users: a pipeline is one pure transformation between a topic and a table, and its time
rules.

This module imports neither pyspark nor airflow: declaring and listing pipelines is cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hindcast import ddl
from hindcast.errors import BadNameError, BadTopicNameError, PipelineError, together

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Kafka's own rule (org.apache.kafka.common.internals.Topic).
TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
DURATION = re.compile(r"\s*(\d+)\s+(millisecond|second|minute|hour|day)s?\s*")
EVENT_TIME_TYPES = frozenset({"timestamp"})
_METADATA = frozenset(
    {"_topic", "_partition", "_offset", "_timestamp", "_value", "_key", "_headers", "_tombstone"}
)
#: Columns that the platform adds to the source's frame; a topic's schema may not use them.
RESERVED = _METADATA | {"window", "_reason", "_event_at", "_corrupt"}
#: The platform's own tables (:class:`hindcast.tables.table_names.ControlTable`): no result may have the name
#: of one.
CONTROL_TABLES = frozenset(
    {
        "leases",
        "checkpoints",
        "runs",
        "verdicts",
        "differences",
        "late_rows",
        "dead_letters",
        "mended_letters",
        "events",
        "verdict_trends",
        "proofs",
        "ledger_bases",
    }
)
#: A pipeline's partitions are numbered across its topics: partition 3 of its second topic is 10_003.
TOPIC_STRIDE = 10_000
#: No fleet could use the partitions of a larger topic.
MAX_SHARDS = 1000
FORM = (
    '@pipeline(source=Topic("trades", schema="ticker string, ts timestamp, ask double", key="ticker"), '
    'event_time="ts", watermark="10 seconds", window=Window("5 seconds", slide="1 second"), '
    'sink=Table("stock_stats", keys=["window", "ticker"]), version=1)'
)


def check_name(what: str, name: str) -> str:
    """Return the name; raise :class:`BadNameError` if it is not ``[A-Za-z0-9._-]{1,64}`` or is only dots."""
    if not NAME.fullmatch(name) or not name.strip("."):
        raise BadNameError(what=what, name=name)
    return name


def check_topic(name: str) -> str:
    """Return the topic's name; raise :class:`BadTopicNameError` if Kafka would refuse it."""
    if not TOPIC_NAME.fullmatch(name):
        raise BadTopicNameError(name=name)
    return name


def parse_duration(text: str) -> timedelta:
    """``"10 seconds"`` as a timedelta; ValueError names the valid form."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f'{text!r} is not a duration like "10 seconds", "500 milliseconds" or "1 hour"')
    return timedelta(**{match[2] + "s": int(match[1])})


def parse_start(text: str) -> str | datetime | dict[int, int]:
    """``earliest``, ``latest``, an aware instant, or offsets by partition.

    :raises ValueError: names the valid forms
    """
    if text in {"earliest", "latest"}:
        return text
    try:
        if text.startswith("{"):
            return _parse_offsets(text)
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at
    except (ValueError, TypeError, AttributeError):
        pass
    forms = 'earliest, latest, an ISO 8601 time with an offset from UTC, or offsets like {"0": 100}'
    raise ValueError(f"start {text!r} is none of {forms}")


def _parse_offsets(text: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for partition, offset in json.loads(text).items():
        offsets[int(partition)] = int(offset)
    return offsets


class Format(StrEnum):
    """How a topic's values are written."""

    JSON = "json"  # one object
    TEXT = "text"  # a line, which Topic.parse takes apart
    AVRO = "avro"  # one record of Topic.avro_schema, without a header
    PROTOBUF = "protobuf"  # one Topic.message


class Metadata(StrEnum):
    """What of a record beside its value the function may ask for."""

    KEY = "key"  # in the column _key: binary
    HEADERS = "headers"  # in the column _headers: array<struct<key: string, value: binary>>


def _as_member(declared: object, field_name: str, words: type[StrEnum]) -> None:
    """Replace a word by its member. Any other word stays, and is listed among the declaration's mistakes."""
    word = getattr(declared, field_name)
    with suppress(ValueError):
        object.__setattr__(declared, field_name, words(word))


@dataclass(frozen=True)
class Topic:
    """A Kafka topic. ``schema`` is Spark DDL; ``key`` is the field by which producers choose the partition.

    A record without a value for a ``NOT NULL`` column goes to the dead letters; any other column may be null
    or missing.

    ``parse`` is for text: from the line to a struct with the schema's columns, null for an invalid line.
    ``avro_schema`` is the writer's schema as JSON. ``message`` is the full name of a message of Protobuf, and
    ``descriptor`` the bytes that ``protoc --include_imports --descriptor_set_out`` writes for it. A column
    has the name of the message's field.

    With ``registry=True`` the number of a schema stands in front of a value, as the serializers of
    Confluent's Schema Registry write it for JSON, Avro and Protobuf. ``avro_schema`` is the reader's schema
    then: a record of another schema is a row if Avro resolves the one to the other. A record with an unknown
    number is a dead letter.

    ``event_time`` is the topic's own column, if it differs
    from the pipeline's. A topic with ``watermark=False`` neither moves the watermark nor waits for it, so
    state from it is kept for good: a changelog without records for hours would otherwise hold all results
    back. With ``archive=True`` Airflow copies its records to a table that outlives the topic's retention, for
    replays.

    ``metadata`` gives the function the record's key, as bytes in the column ``_key``, or its headers, in
    ``_headers``. A record without a value is a dead letter. With ``tombstones=True`` one that has a key is a
    row instead, as in a change feed where it says that the key was deleted: all of the schema's columns are
    null, the column ``_tombstone`` is true, and ``_key`` has the key. It has no event time, so it neither
    moves the watermark nor falls into a window.
    """

    name: str
    schema: str
    key: str | None = None
    format: Format = Format.JSON
    parse: Callable[[Column], Column] | None = None
    avro_schema: str = ""
    # None of the three in the repr: the fingerprint of a checkpoint has them beside it.
    descriptor: bytes = field(default=b"", repr=False)
    message: str = field(default="", repr=False)
    registry: bool = field(default=False, repr=False)
    event_time: str = ""
    watermark: bool = True
    # Not in the repr: it changes no query, so it must not change a checkpoint's fingerprint.
    archive: bool = field(default=False, repr=False)
    # Not in the repr either: the columns that they add are in the query's plan.
    metadata: Sequence[Metadata | str] = field(default=(), repr=False)
    tombstones: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        _as_member(self, "format", Format)  # "text" may be written for it
        if isinstance(self.metadata, list):
            object.__setattr__(self, "metadata", tuple(self.metadata))

    @property
    def fields(self) -> tuple[ddl.Column, ...]:
        """The schema's columns; ValueError says what is wrong with it."""
        return ddl.parse(self.schema)

    @property
    def columns(self) -> dict[str, str]:
        """Name to type, in order. The types are as Spark shows them, without NOT NULL."""
        return {field.name: str(field.type.nullable()) for field in self.fields}

    @property
    def is_decoded(self) -> bool:
        """Whether Python decodes a value before Spark parses it."""
        return self.registry or self.format is Format.PROTOBUF

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of the record, beside its place, that the function is given."""
        columns = []
        if Metadata.KEY in self.metadata or self.tombstones:
            columns.append("_key")
        if Metadata.HEADERS in self.metadata:
            columns.append("_headers")
        if self.tombstones:
            columns.append("_tombstone")
        return tuple(columns)

    @property
    def required(self) -> list[str]:
        """The columns that are NOT NULL."""
        return [field.name for field in self.fields if field.required]


@dataclass(frozen=True)
class Lookup:
    """A Delta table that a pipeline joins, in one fixed version: another version of it needs another version
    of the pipeline. ``name`` is its folder below ``lookups`` of the tables' root, or a URL.
    """

    name: str
    version: int


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


class Policy(StrEnum):
    """What a verdict leads to."""

    REPORT = "report"
    CORRECT = "correct"


class Mode(StrEnum):
    """What a batch's rows do to the table."""

    APPEND = "append"  # each row is final
    UPSERT = "upsert"  # each row replaces the one with its keys: running results


@dataclass(frozen=True)
class Served:
    """One Delta table with what readers get of a pipeline, for engines that know nothing of Hindcast.

    It always has the rows of the promoted version, corrected. A promotion, a way back and a correction are
    one commit on it each. It is made at ``served/<pipeline>`` below the root of all tables.

    ``partition_by``: columns of texts, whole numbers, dates or truth values. ``comment`` describes the table,
    and ``comments`` its columns. ``properties``: Delta's own, such as ``delta.enableChangeDataFeed``.
    ``url``: a path or URL of its own.
    """

    partition_by: Sequence[str] = ()
    comment: str = ""
    comments: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    url: str = ""


@dataclass(frozen=True)
class Table:
    """A Delta table; ``keys`` are the columns that name one row of the result.

    ``deleted``, for an upsert, is a boolean column of the result, which the table does not have. A row in
    which it is true takes the row with its keys out of the table.

    ``url`` is the path or URL of a table that is there already, in a lake of one's own; by default the table
    is made below the root of all tables. The upkeep leaves a table with a URL alone.

    ``served``: a second table that any engine may read; see :class:`Served`. None without it.
    """

    name: str
    keys: list[str] = field(default_factory=list)
    mode: Mode = Mode.APPEND
    deleted: str = ""
    # Not in the repr: where the rows go changes no query, so it must not change a checkpoint's fingerprint.
    url: str = field(default="", repr=False)
    served: Served | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _as_member(self, "mode", Mode)  # "upsert" may be written for it


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One declared pipeline, equal only to itself.

    ``transform`` takes the parsed source (with the ``window`` column), then what it joins, and returns the
    result frame.
    """

    name: str
    transform: Callable[..., DataFrame]
    source: Topic
    event_time: str
    watermark: str
    sink: Table
    version: int
    joined: tuple[Topic | Lookup, ...] = ()
    window: Window | None = None
    shards: int = 1
    max_future: str = "1 hour"
    re_execute: bool = False
    hindsight: Callable[..., DataFrame] | None = None
    start: str = "earliest"
    paused: bool = False
    late: Callable[[DataFrame], DataFrame] | None = None
    late_sink: Table | None = None
    policy: Policy = Policy.REPORT
    captured_floor: float = 0.0
    ratio_bound: dict[str, float] = field(default_factory=dict)
    tolerance: dict[str, float] = field(default_factory=dict)
    changed_at_most: float | None = None
    reference: tuple[str, str] | None = None
    expectations: tuple[dict[str, Any], ...] = ()
    foreign_checkpoint: str = ""
    file: str = ""
    line: int = 0
    source_code: str = ""

    def __post_init__(self) -> None:
        _as_member(self, "policy", Policy)

    @property
    def is_foreign(self) -> bool:
        """Whether others run its stream, and Hindcast only judges it."""
        return bool(self.foreign_checkpoint)

    @property
    def row_by_row(self) -> bool:
        """Whether each row of the result comes from one record, whatever other records there are."""
        return self.window is None and not self.re_execute and self.sink.mode is Mode.APPEND

    @property
    def has_running_results(self) -> bool:
        """Whether a result depends on all that came before, but not on the batches in which it came."""
        return self.window is None and not self.re_execute and self.sink.mode is Mode.UPSERT

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that it reads, the source first: the order in which its partitions are numbered."""
        joined = [one for one in self.joined if isinstance(one, Topic)]
        return (self.source, *joined)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that it writes."""
        if self.late_sink:
            return (self.sink, self.late_sink)
        return (self.sink,)

    def event_time_of(self, topic: Topic) -> str:
        return topic.event_time or self.event_time

    def place(self, partition: int) -> str:
        """A partition of the pipeline's own numbering in words: its number, and its topic if there are
        several.
        """
        index, number = divmod(partition, TOPIC_STRIDE)
        topics = self.topics
        if len(topics) == 1:
            return str(number)
        return f"{topics[index].name}/{number}"

    @property
    def compares_by_key(self) -> bool:
        """Whether a result has one row a key. If not, whole rows are compared, so that no column has a value
        of its own.
        """
        return self.window is not None or self.re_execute or self.sink.mode is Mode.UPSERT

    @property
    def watermark_delay(self) -> timedelta:
        return parse_duration(self.watermark)

    @property
    def future_limit(self) -> timedelta:
        return parse_duration(self.max_future)


@dataclass(frozen=True)
class Declarations:
    """The valid declarations of one module, and the mistakes of its others."""

    pipelines: list[Pipeline] = field(default_factory=list)
    errors: list[PipelineError] = field(default_factory=list)


#: While a module is being loaded, :func:`pipeline` adds its declarations to this (see
#: :mod:`hindcast.catalog`).
declared: ContextVar[Declarations | None] = ContextVar("declared", default=None)


def pipeline(
    *,
    source: Topic,
    event_time: str,
    watermark: str,
    sink: Table,
    version: int,
    joined: list[Topic | Lookup] | None = None,
    window: Window | None = None,
    shards: int = 1,
    max_future: str = "1 hour",
    re_execute: bool = False,
    hindsight: Callable[..., DataFrame] | None = None,
    start: str = "earliest",
    paused: bool = False,
    late: Callable[[DataFrame], DataFrame] | None = None,
    late_sink: Table | None = None,
    policy: Policy | str = Policy.REPORT,
    captured_floor: float = 0.0,
    ratio_bound: dict[str, float] | None = None,
    tolerance: dict[str, float] | None = None,
    changed_at_most: float | None = None,
    reference: tuple[str, str] | None = None,
    expectations: list[dict[str, Any]] | None = None,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Declare the decorated function as a pipeline of the function's own name.

    :param source: the topic to read
    :param event_time: the source's column of type timestamp that says when a row happened
    :param watermark: how long after the newest event time seen a row still counts, e.g. ``"10 seconds"``
    :param joined: further topics and tables; the function gets a frame for each, after the source's
    :param window: the event-time windows; the platform assigns the ``window`` column, the function groups by
        it
    :param sink: the table of the result; ``keys`` must be among the function's result columns
    :param version: rises with each change of the function's meaning
    :param shards: the number of shards for the partitions; above 1 the keys must contain the topic's key
    :param max_future: a row stamped further than this past the broker's timestamp is a dead letter
    :param re_execute: whether results depend on which rows came together in a batch (joins of streams,
        sessions, deduplication, state of its own): the verdict then runs the recorded batches again, through
        the streaming engine
    :param hindsight: the best answer once the whole range is known, as a function of the same frames; by
        default the same transformation. With a window it answers each window from the rows of that window
    :param start: where a new version begins: ``earliest``, ``latest``, an ISO 8601 time with an offset from
        UTC, or offsets as JSON
    :param paused: whether a new pipeline waits for `hindcast resume`
    :param late: a function of late rows, row by row; its result is appended to ``late_sink``
    :param policy: ``report``: a verdict lists the late rows; ``correct``: after a verdict without unexplained
        differences readers get the batch's results for the windows that it judged, if rows came late for them
    :param captured_floor: the least share of input rows the stream must hold for a verdict to pass, 0 to 1
    :param ratio_bound: a result's column to the greatest ratio, from 1, that a cost in the stream may have to
        the cost in hindsight, in each row that both hold: the competitive ratio. A verdict beyond it fails
    :param tolerance: a result's column to the greatest absolute difference, in the column's own unit, that
        counts as rounding
    :param changed_at_most: the greatest share of keys, 0 to 1, that this version may change against the
        active one; beyond it the comparison fails, and a promotion needs a reason
    :param reference: the range that each new version replays as a benchmark: its two ends as ISO 8601 times
        with an offset from UTC, or as JSON of offsets; the end is exclusive
    :param expectations: Great Expectations on the sink, each ``{"type": ..., **kwargs}``
    :raises PipelineError: with file, line and the valid form of each part of the declaration that is wrong
    """

    def declare(transform: Callable[..., DataFrame]) -> Pipeline:
        return _declare(
            transform,
            source=source,
            event_time=event_time,
            watermark=watermark,
            sink=sink,
            version=version,
            joined=tuple(joined or ()),
            window=window,
            shards=shards,
            max_future=max_future,
            re_execute=re_execute,
            hindsight=hindsight,
            start=start,
            paused=paused,
            late=late,
            late_sink=late_sink,
            policy=policy,
            captured_floor=captured_floor,
            ratio_bound=ratio_bound or {},
            tolerance=tolerance or {},
            changed_at_most=changed_at_most,
            reference=reference,
            expectations=tuple(expectations or ()),
        )

    return declare


#: A stream of others takes every record, however far in the future it is stamped.
_ANY_FUTURE = "36500 days"


def verified(
    *,
    table: str,
    checkpoint: str,
    keys: list[str] | None = None,
    source: Topic,
    event_time: str,
    watermark: str,
    window: Window | None = None,
    version: int = 1,
    hindsight: Callable[..., DataFrame] | None = None,
    captured_floor: float = 0.0,
    ratio_bound: dict[str, float] | None = None,
    tolerance: dict[str, float] | None = None,
    expectations: list[dict[str, Any]] | None = None,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Declare what a stream that others run should have computed. Its table is judged, and is never
    written.

    The stream is a query of Structured Streaming, of Spark 3.5 or later, that reads one topic and appends to
    a Delta table. It goes on as it is: nothing of it is changed, and no worker consumes the topic. The
    decorated function does what the query does between its source and its sink; in a windowed one the
    query's table has Spark's own column ``window``.

    :param table: the path or URL of the query's table
    :param checkpoint: the path or URL of the query's checkpoint folder
    :param keys: the columns that name one row of the result; ``window`` is one of them in a windowed query.
        Without a window, whole rows are compared
    :param watermark: the delay of the query's own ``withWatermark``
    :param version: raise it if the query began again with another checkpoint: its record begins again, too
    :param source: as of :func:`pipeline`; so are the other arguments
    :raises PipelineError: with file, line and the valid form of each part of the declaration that is wrong
    """

    def declare(transform: Callable[..., DataFrame]) -> Pipeline:
        return _declare(
            transform,
            source=source,
            event_time=event_time,
            watermark=watermark,
            sink=Table(transform.__name__, list(keys or ()), url=table),
            version=version,
            window=window,
            max_future=_ANY_FUTURE,
            hindsight=hindsight,
            captured_floor=captured_floor,
            ratio_bound=ratio_bound or {},
            tolerance=tolerance or {},
            expectations=tuple(expectations or ()),
            foreign_checkpoint=checkpoint,
        )

    return declare


def _declare(transform: Callable[..., DataFrame], **arguments: Any) -> Pipeline:
    """The pipeline of a function's own name. A catalog that is loading its module takes it, or its mistakes.

    :raises PipelineError: if no catalog is loading, and the declaration has mistakes
    """
    code = transform.__code__
    result = Pipeline(
        name=transform.__name__,
        transform=transform,
        file=code.co_filename,
        line=code.co_firstlineno,
        source_code=_source_of(transform),
        **arguments,
    )
    loading = declared.get()
    errors = mistakes(result)
    if loading is None:
        if errors:
            raise together(errors)
        return result
    loading.errors.extend(errors)
    if not errors:
        loading.pipelines.append(result)
    return result


def mistakes(pipeline: Pipeline) -> list[PipelineError]:
    """All mistakes of the declaration, each with its line and a valid form."""
    from hindcast.pipeline_checks import line_of, problems  # they import this module

    errors = []
    for problem in problems(pipeline):
        line = line_of(pipeline, problem.field)
        mistake = {"problem": problem.says, "form": problem.form}
        error = PipelineError(file=pipeline.file, line=line, pipeline=pipeline.name, **mistake)
        errors.append(error)
    return errors


def check(pipeline: Pipeline) -> None:
    """:raises PipelineError: lists all mistakes of the declaration"""
    errors = mistakes(pipeline)
    if errors:
        raise together(errors)


def _source_of(function: Callable[..., Any]) -> str:
    import inspect

    try:
        return inspect.getsource(function)
    except OSError:  # defined in an interactive session
        return ""
