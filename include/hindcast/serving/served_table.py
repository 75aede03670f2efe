"""The served table: one Delta table with what readers get of a pipeline, for engines that know nothing of
Hindcast.

One pass of :meth:`ServedTable.publish` brings the table up to date. Its steps:

1. open the table at its newest version, S;
2. read what readers get now: the leases' row says which version is active, then the newest version of its
   sink and of its corrections, and of the sinks before it;
3. find the pieces that the table lacks, and those that it has too much
   (:mod:`hindcast.serving.served_pieces`);
4. write files for the pieces that it lacks. No commit names them yet;
5. one commit, as version S + 1 or not at all, adds these and removes the others.

So several processes may publish at once. The one that commits S + 1 has read everything after S was there,
and one that read less finds S + 1 taken: the table never goes back. A process may die between any two steps:
files that no commit names are deleted by the upkeep.

The commit changes the table from one thing that readers got to a later one, whole: a promotion, a way back or
a correction is seen whole or not at all.

The upkeep of a sink joins its files, which changes no row. The table follows that in a commit of its own,
which says so (Delta's ``dataChange``, PROTOCOL.md, "Add File and Remove File"). So readers of its changes see
no row twice. If the sink's log no longer tells where files were joined, one commit replaces them, and says
that it changed rows.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from hindcast.catalog import Catalog
from hindcast.delta.column_statistics import statistics_of_file
from hindcast.delta.commit import METADATA_KEY, commits_down, read_actions, until_it_lands
from hindcast.delta.files import filesystem
from hindcast.delta.open_table import find_table, open_table
from hindcast.errors import BadInputError, HindcastError, ServedTableRefusedError, StoreUnavailableError
from hindcast.installation import Installation
from hindcast.pipeline import Served
from hindcast.processes.crash_points import reach
from hindcast.serving.corrected_windows import RUN_ID
from hindcast.serving.reading import Reading, newest
from hindcast.serving.served_pieces import Piece, piece_name_in, pieces_of, source_in, source_of

_log = structlog.get_logger(__name__)

#: Properties of a new table. A declaration may say otherwise.
_PROPERTIES = {"delta.logRetentionDuration": "interval 8 days"}
#: So much of a file is in memory while it is copied.
_COPIED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Published:
    """What one call did. ``version`` is the table's newest; the others count commits and data files."""

    pipeline: str
    table: str
    version: int
    commits: int
    files_added: int
    files_removed: int

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class _Step:
    """What the next commit makes of the table: what readers get at these versions of the sinks.

    ``quiet``: the sources whose files a sink's upkeep joined or wrote in that step: no row of them changes.
    """

    reading: Reading
    quiet: frozenset[str] = frozenset()


@dataclass
class _Done:
    commits: int = 0
    added: int = 0
    removed: int = 0


@dataclass
class ServedTable:
    """The served table of one pipeline. One thread uses an object."""

    installation: Installation
    pipeline: str
    #: What the table had at the end of the last step, as a commit says it, and which version of it that was.
    _reached: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)
    _reached_at: tuple[str, int] = field(default=("", -1), init=False, repr=False)

    def publish(self) -> Published | None:
        """Bring the table up to what readers get now.

        :returns: None if the active version declares none
        :raises BadInputError: if the pipeline has no results yet
        :raises ServedTableRefusedError: if the table cannot be as it is declared
        :raises StoreUnavailableError: if the store does not answer; call it again
        """
        done = _Done()
        is_behind = True
        while is_behind:
            declared = newest(self.installation, self.pipeline).pipeline
            if declared.sink.served is None:
                return None
            url = self.installation.settings.served(declared)
            is_behind = self._publish_once(url, done)
        version = open_table(url, self._options).version()
        return Published(self.pipeline, url, version, done.commits, done.added, done.removed)

    def _publish_once(self, url: str, done: _Done) -> bool:
        """One step; see :meth:`_commit_next`."""
        try:
            return until_it_lands(url, lambda: self._commit_next(url, done))
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StoreUnavailableError(table=url, action="written", reason=error) from error

    @property
    def _options(self) -> dict[str, str]:
        return self.installation.settings.storage_options

    def _commit_next(self, url: str, done: _Done) -> bool:
        """Do the steps once.

        :returns: whether there may be more to do
        :raises CommitFailedError: if another process was faster
        """
        table = find_table(url, self._options)
        reach("served.2")  # 2. what do readers get?
        reading = newest(self.installation, self.pipeline)
        served = reading.pipeline.sink.served
        if served is None:
            return True  # another version was promoted just now
        if table is None or self._declare(table, reading, served):
            if table is None:
                self._create(url, reading, served)
            # What was read may be older than what another process has published meanwhile.
            return True
        version = (str(table.metadata().id), table.version())
        reached: list[dict[str, Any]] = []
        if version == self._reached_at:  # nobody has written to the table since, nor made it again
            reached = self._reached
        if _parts(reading) == reached:
            return False
        step = _next_step(reading, self._published(url, table), reached)
        reach("served.3")  # 3. what does the table lack?
        wanted = {piece.name: piece for piece in self._pieces(step.reading)}
        there = pa.table(table.get_add_actions()).to_pylist()
        names = {piece_name_in(file["path"]) for file in there}
        reach("served.4")  # 4. files that no commit names yet
        schema = pa.schema(table.schema().to_arrow())
        added = list(self._written(url, schema, served, step, wanted, names))
        removed = [_removal(file, step) for file in there if piece_name_in(file["path"]) not in wanted]
        if added or removed:
            reach("served.5")  # 5. one commit, if nobody else has made one
            _commit(table, [*removed, *added], served, step)
            done.commits += 1
            done.added += len(added)
            done.removed += len(removed)
            version = (version[0], version[1] + 1)
        self._reached = _parts(step.reading)
        self._reached_at = version
        return self._reached != _parts(reading)

    def _pieces(self, reading: Reading) -> list[Piece]:
        """:raises ServedTableRefusedError: if the files of a sink alone do not tell its rows"""
        try:
            return list(pieces_of(reading))
        except BadInputError as error:
            raise ServedTableRefusedError(pipeline=self.pipeline, **error.fields) from error

    def _create(self, url: str, reading: Reading, served: Served) -> None:
        schema = _columns(reading, served)
        DeltaTable.create(
            url,
            schema,
            mode="ignore",
            partition_by=list(served.partition_by) or None,
            name=self.pipeline,
            description=served.comment or None,
            configuration={**_PROPERTIES, **served.properties},
            storage_options=self._options or None,
        )

    def _declare(self, table: DeltaTable, reading: Reading, served: Served) -> bool:
        """Change what the table says of itself to what the active version declares; return whether it
        differed. No row changes.

        :raises ServedTableRefusedError: if that cannot be changed
        """
        schema = _columns(reading, served)
        metadata = table.metadata()
        if list(metadata.partition_columns) != list(served.partition_by):
            raise self._refused(f"it is partitioned by {list(metadata.partition_columns)}", table)
        known = {column.name: column for column in table.schema().fields}
        new = []
        for column in schema.fields:
            if column.name not in known:
                new.append(column)
            elif column.type != known[column.name].type:
                raise self._refused(
                    f"its column {column.name} is {known[column.name].type}, and now it is {column.type}",
                    table,
                )
        differs = bool(new)
        if new:
            table.alter.add_columns(new)
        changed = dict(served.properties.items() - metadata.configuration.items())
        if changed:
            table.alter.set_table_properties(changed)
            differs = True
        if served.comment and metadata.description != served.comment:
            table.alter.set_table_description(served.comment)
            differs = True
        for name, comment in served.comments.items():
            if name in known and known[name].metadata.get("comment") != comment:
                table.alter.set_column_metadata(name, {"comment": comment})
                differs = True
        return differs

    def _refused(self, problem: str, table: DeltaTable) -> ServedTableRefusedError:
        cure = f"Move {table.table_uri} away: it is made again, whole."
        return ServedTableRefusedError(pipeline=self.pipeline, problem=problem, cure=cure)

    def _published(self, url: str, table: DeltaTable) -> list[dict[str, Any]]:
        """What the table's newest commit was made of; nothing if its log does not say so."""
        for entry in commits_down(url, self._options, table.version()):
            if METADATA_KEY in entry:
                parts: list[dict[str, Any]] = json.loads(entry[METADATA_KEY])["parts"]
                return parts
        return []

    def _written(
        self,
        url: str,
        schema: pa.Schema,
        served: Served,
        step: _Step,
        wanted: Mapping[str, Piece],
        names: set[str],
    ) -> Iterator[AddAction]:
        """Write files for the pieces that the table lacks.

        :param names: of the pieces that it has
        """
        other_types = _sinks_of_other_types(step.reading, schema)
        for name, piece in wanted.items():
            if name in names:
                continue
            data_change = piece.source not in step.quiet
            rewritten = bool(served.partition_by) or piece.reading.sink_url in other_types
            for path, partition in self._files(url, piece, schema, served, rewritten=rewritten):
                yield _addition(url, path, partition, schema, self._options, data_change)

    def _files(
        self, url: str, piece: Piece, schema: pa.Schema, served: Served, *, rewritten: bool
    ) -> Iterator[tuple[str, dict[str, str | None]]]:
        """Write the files of a piece; each with the values of its partition.

        :param rewritten: whether a file of the sink cannot be taken as it is, though all of its rows are
        """
        if piece.path and piece.windows is None and not rewritten:
            path = _new_path(piece)
            _copy(piece.reading.sink_url, piece.path, url, path, self._options)
            yield path, {}
            return
        store = filesystem(url, self._options)
        rows = _as_columns(piece.rows(), schema, self.pipeline)
        for partition, part in _partitions(rows, served.partition_by):
            path = _new_path(piece)
            pq.write_table(part, path, filesystem=store, compression="zstd")
            yield path, partition


def is_served(catalog: Catalog, pipeline: str) -> bool:
    """Whether any version of the pipeline that is declared has a served table."""
    declared = catalog.declared.items()
    return any(name == pipeline and one.sink.served is not None for (name, _), one in declared)


def follow(installation: Installation, pipeline: str) -> None:
    """Publish at once what has changed for readers, if the pipeline has a served table. A failure is only
    logged: a worker's next look, `hindcast publish` or the upkeep does it.
    """
    if not is_served(installation.catalog, pipeline):
        return
    try:
        ServedTable(installation, pipeline).publish()
    except HindcastError as error:
        message = "The served table was not brought up to date; `hindcast publish` does it."
        _log.warning(message, pipeline=pipeline, reason=str(error))


def _parts(reading: Reading) -> list[dict[str, Any]]:
    """What a table is made of, as its commit says it."""
    return [
        {
            "version": part.pipeline.version,
            "sink": part.sink_url,
            "sink_version": part.sink_version,
            "corrections_version": part.corrected.version,
            "after_ms": after_ms,
            "to_ms": to_ms,
        }
        for part, after_ms, to_ms in reading.parts()
    ]


def _next_step(
    reading: Reading, published: Sequence[Mapping[str, Any]], reached: Sequence[Mapping[str, Any]]
) -> _Step:
    """How far the next commit goes: up to before the next join of files, or over one.

    :param published: what the table's newest commit was made of
    :param reached: what this process has found to be in the table since: the same, or more
    """
    known: dict[str, int] = {}
    for said in [*published, *reached]:
        known[said["sink"]] = max(said["sink_version"], known.get(said["sink"], -1))
    sinks: dict[str, int] = {}
    quiet: set[str] = set()
    only_sinks_moved = _without_sink_versions(_parts(reading)) in (
        _without_sink_versions(published),
        _without_sink_versions(reached),
    )
    for part, _, _ in reading.parts():
        url = part.sink_url
        sinks[url] = part.sink_version
        joined = _next_join(part, known.get(url))
        if joined is None:
            continue
        version, sources = joined
        if only_sinks_moved and version == known[url] + 1:
            sinks[url] = version
            quiet |= sources
        else:
            sinks[url] = version - 1
    earlier = tuple(
        replace(part, reading=replace(part.reading, sink_version=sinks[part.reading.sink_url]))
        for part in reading.earlier
    )
    pinned = replace(reading, sink_version=sinks[reading.sink_url], earlier=earlier)
    return _Step(pinned, frozenset(quiet))


def _without_sink_versions(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in part.items() if name != "sink_version"} for part in parts]


def _next_join(reading: Reading, known: int | None) -> tuple[int, set[str]] | None:
    """The first version of a sink after the known one that only joined files, with its files as sources.

    :returns: None if there is none, or if the log does not have all versions up to it
    """
    if known is None:
        return None
    url = reading.sink_url
    for version in range(known + 1, reading.sink_version + 1):
        actions = read_actions(url, reading.storage_options, version)
        if actions is None:
            return None
        paths = _joined_paths(actions)
        if paths:
            table_id = str(open_table(url, reading.storage_options).metadata().id)
            return version, {source_of(table_id, path) for path in paths}
    return None


def _joined_paths(actions: Iterable[Mapping[str, Any]]) -> list[str]:
    """The files that a commit added and removed, if it changed no row; else none."""
    paths = []
    for action in actions:
        for kind in ("add", "remove"):
            file = action.get(kind)
            if file is None:
                continue
            if file["dataChange"]:
                return []
            paths.append(file["path"])
    return paths


def _commit(table: DeltaTable, actions: list[AddAction | RemoveAction], served: Served, step: _Step) -> None:
    properties = CommitProperties(
        custom_metadata={METADATA_KEY: json.dumps({"kind": "served", "parts": _parts(step.reading)})},
        max_commit_retries=0,
    )
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by=list(served.partition_by) or None,
        commit_properties=properties,
    )


def _removal(file: Mapping[str, Any], step: _Step) -> RemoveAction:
    data_change = source_in(file["path"]) not in step.quiet
    now_ms = int(time.time() * 1000)
    values = file.get("partition") or {}
    partition = {name: _partition_text(value) for name, value in values.items()}
    return RemoveAction(file["path"], data_change, now_ms, file["size_bytes"], partition)


def _addition(
    url: str,
    path: str,
    partition: Mapping[str, str | None],
    schema: pa.Schema,
    storage_options: dict[str, str],
    data_change: bool,  # noqa: FBT001 -- Delta's own name
) -> AddAction:
    store = filesystem(url, storage_options)
    with store.open_input_file(path) as file:
        stats = statistics_of_file(pq.read_metadata(file), schema)
        size = file.size()
    return AddAction(path, size, partition, int(time.time() * 1000), data_change, json.dumps(stats))


def _new_path(piece: Piece) -> str:
    return f"{piece.name}-{uuid.uuid4().hex}.parquet"


def _copy(from_url: str, path: str, to_url: str, new_path: str, storage_options: dict[str, str]) -> None:
    """Give a file of a sink a second name in the table; where a link cannot be had, copy it."""
    if "://" not in from_url and "://" not in to_url:
        try:
            os.link(f"{from_url}/{unquote(path)}", f"{to_url}/{new_path}")
        except OSError:
            pass  # on another disk, or one without links
        else:
            return
    source = filesystem(from_url, storage_options)
    target = filesystem(to_url, storage_options)
    with (
        source.open_input_stream(unquote(path)) as file,
        target.open_output_stream(new_path) as raw,
        # deltalake's file takes bytes, and none of Arrow's buffers.
        pa.BufferedOutputStream(raw, _COPIED_BYTES) as copy,
    ):
        shutil.copyfileobj(file, copy, _COPIED_BYTES)


def _columns(reading: Reading, served: Served) -> Schema:
    """The columns of the table: those of the active version's sink, and the run whose answer a row is."""
    sink = open_table(reading.sink_url, reading.storage_options)
    columns = []
    for column in sink.schema().fields:
        metadata = dict(column.metadata)
        comment = served.comments.get(column.name)
        if comment:
            metadata["comment"] = comment
        columns.append(Field(column.name, column.type, nullable=True, metadata=metadata))
    columns.append(Field(RUN_ID, PrimitiveType("string"), nullable=True))
    return Schema(columns)


def _sinks_of_other_types(reading: Reading, schema: pa.Schema) -> set[str]:
    """The sinks with a column of another type than the table's. The active version's has none."""
    found = set()
    for part in reading.earlier:
        sink = open_table(part.reading.sink_url, part.reading.storage_options)
        for column in pa.schema(sink.schema().to_arrow()):
            if column.name in schema.names and schema.field(column.name).type != column.type:
                found.add(part.reading.sink_url)
    return found


def _as_columns(rows: pa.Table, schema: pa.Schema, pipeline: str) -> pa.Table:
    """The rows with the table's columns; those that they lack are left out of the file, so they are null.

    :raises ServedTableRefusedError: if a value does not fit into the table's type
    """
    fields = [column for column in schema if column.name in rows.column_names]
    try:
        return rows.select([column.name for column in fields]).cast(pa.schema(fields))
    except pa.ArrowInvalid as error:
        problem = f"a row of an earlier version does not fit into its columns: {error}"
        cure = "Give the new version a column of its own for what has another type."
        raise ServedTableRefusedError(pipeline=pipeline, problem=problem, cure=cure) from error


def _partitions(rows: pa.Table, columns: Iterable[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition, without its columns."""
    names = list(columns)
    if not rows.num_rows:
        return
    if not names:
        yield {}, rows
        return
    found = rows.group_by(names).aggregate([])
    rest = rows.drop_columns(names)
    for values in found.to_pylist():
        of_partition = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
        for name in names:
            value = values[name]
            is_value = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
            of_partition = pc.and_(of_partition, pc.fill_null(is_value, False))
        yield {name: _partition_text(values[name]) for name in names}, rest.filter(of_partition)


def _partition_text(value: Any) -> str | None:
    """A partition's value as Delta's log has it (PROTOCOL.md, "Partition Value Serialization")."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
