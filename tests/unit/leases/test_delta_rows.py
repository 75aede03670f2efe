"""Leases as rows: the rows that are written and the leases that are read are those of a client that remembers
nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.errors import SchemaVersionError
from hindcast.leases.delta_rows import LeaseRows
from hindcast.leases.lease import Lease, LeaseKey, StatusType
from hindcast.tables.table_names import SCHEMA_VERSION

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
INSTANTS = st.none() | st.integers(0, 3).map(lambda seconds: BEGIN + timedelta(seconds=seconds))
JSON_VALUES = st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2)
JSON = st.dictionaries(st.sampled_from(["batch", "end_offsets"]), JSON_VALUES, max_size=2)
LEASES = st.builds(
    Lease,
    stream_id=st.just("trades"),
    status_type=st.sampled_from([StatusType.SHARD, StatusType.SLOT]),
    status_value=st.sampled_from(["a", "b", "c"]),
    checkpoint=JSON,
    detail=JSON,
    lease_counter=st.integers(0, 3),
    lease_owner=st.sampled_from(["", "w"]),
    parent_shard_ids=st.lists(st.sampled_from(["p", "q"]), max_size=2),
    epoch=st.integers(0, 1),
    updated_at=INSTANTS,
)
VERSIONS = st.lists(st.tuples(st.integers(0, 1), st.lists(LEASES, max_size=4)), min_size=1, max_size=8)


def lease(name: str, **changes: object) -> Lease:
    one = Lease(stream_id="trades", status_type=StatusType.SHARD, status_value=name, detail={"of": [name]})
    return one.evolve(**changes)


def table(*leases: Lease, **columns: object) -> pa.Table:
    """The table of these leases as a client writes it that remembers nothing, but with these values of
    columns in each row.
    """
    data, _ = LeaseRows().write({one.key: one for one in leases})
    return pa.Table.from_pylist([row | columns for row in data.to_pylist()], schema=data.schema)


def memory(data: pa.Table) -> dict[str, list[int]]:
    """Where each column lies in memory."""
    addresses: dict[str, list[int]] = {}
    for name in data.schema.names:
        buffers = data[name].chunk(0).buffers()
        addresses[name] = [buffer.address for buffer in buffers if buffer]
    return addresses


def moved(data: pa.Table, before: pa.Table) -> set[str]:
    """The columns that do not lie where they lay before."""
    was = memory(before)
    return {name for name, addresses in memory(data).items() if addresses != was[name]}


def fresh(data: pa.Table) -> dict[LeaseKey, Lease]:
    """The leases of a table as a client finds them that has read no other version."""
    return dict(LeaseRows().read(data, "leases").leases)


@given(VERSIONS)
def test_what_is_remembered_changes_nothing(versions: list[tuple[int, list[Lease]]]) -> None:
    """Two clients write versions of the table by turns, and each reads those of the other. Both find what a
    third finds, in its order.
    """
    clients = [LeaseRows(), LeaseRows()]
    for writer, leases in versions:
        wanted = {lease.key: lease for lease in leases}
        data, clients[writer] = clients[writer].write(wanted)
        clients[1 - writer] = clients[1 - writer].read(data, "leases")
        assert data.equals(LeaseRows().write(wanted)[0])
        assert fresh(data) == wanted
        for client in clients:
            assert [*client.leases.items()] == [*fresh(data).items()]


@given(VERSIONS)
def test_a_version_that_was_missed_changes_nothing(versions: list[tuple[int, list[Lease]]]) -> None:
    """A client that reads only some versions, because others write faster, finds in each what it says."""
    writer, reader = LeaseRows(), LeaseRows()
    for missed, leases in versions:
        data, writer = writer.write({lease.key: lease for lease in leases})
        if not missed:
            reader = reader.read(data, "leases")
            assert [*reader.leases.items()] == [*fresh(data).items()]


@given(VERSIONS)
def test_rows_in_another_order_are_read_as_they_are_and_written_in_ours(
    versions: list[tuple[int, list[Lease]]],
) -> None:
    """A foreign tool may write the same rows in reverse. The same is read of them."""
    rows = LeaseRows()
    for turned, leases in versions:
        wanted = {lease.key: lease for lease in leases}
        data, _ = LeaseRows().write(wanted)
        if turned:
            data = data[::-1]
        rows = rows.read(data, "leases")
        assert rows.leases == fresh(data)
        renewed = {key: lease.renewed() for key, lease in rows.leases.items()}
        written, after = rows.write(renewed)
        assert written.equals(LeaseRows().write(renewed)[0])
        assert [*after.leases.items()] == [*fresh(written).items()]


A = lease("a", updated_at=BEGIN)
B = lease("b", checkpoint={"batch": 1})
C = lease("c", parent_shard_ids=["p"])


def test_a_row_that_reads_the_same_is_the_same_lease() -> None:
    """Of a lease that has changed, the JSON is parsed again only if it has changed. So it is also if rows are
    added or removed at the same time.
    """
    first = LeaseRows().read(table(A, B, C), "leases")
    seen = first.leases
    again = first.read(table(A, B.renewed(), C), "leases")
    assert again.leases == {A.key: A, B.key: B.renewed(), C.key: C}
    assert again.leases[A.key] is seen[A.key] and again.leases[C.key] is seen[C.key]
    assert again.leases[B.key].detail is seen[B.key].detail
    assert again.leases[B.key].checkpoint is seen[B.key].checkpoint
    new = again.read(table(A, B.renewed().renewed(), C, lease("d")), "leases")
    assert new.leases[A.key] is seen[A.key] and new.leases[C.key] is seen[C.key]
    assert new.leases[B.key].lease_counter == 2 and new.leases[B.key].detail is seen[B.key].detail
    other = new.read(table(A, B.renewed(detail={}), C, lease("d")), "leases")
    assert other.leases[A.key] is seen[A.key] and other.leases[B.key] == B.renewed(detail={})
    less = other.read(table(A, C), "leases")
    assert less.leases == {A.key: A, C.key: C} and less.leases[C.key] is seen[C.key]


def test_a_column_in_which_nothing_has_changed_is_written_as_it_is() -> None:
    """By a client that wrote the version before, and by one that read it."""
    reader = LeaseRows().read(table(A, B, C), "leases")
    before, _ = reader.write(reader.leases)
    changed = {A.key: A, B.key: B.renewed(), C.key: C}
    written, writer = reader.write(changed)
    again, _ = writer.write({**changed, C.key: C.renewed()})
    read, _ = reader.read(table(A, B.renewed(), C.renewed()), "leases").write(changed)
    for data in (written, again, read):
        assert moved(data, before) == {"lease_counter"}
    assert fresh(read) == fresh(written) == changed
    texts = {**changed, A.key: A.evolve(detail={"of": "others"})}
    data, _ = writer.write(texts)
    assert moved(data, written) == {"detail"}
    assert fresh(data) == texts


def test_json_that_says_the_same_is_written_as_it_was_read() -> None:
    """The spaces and the order of another tool stay until the lease says something else, also if leases are
    added or removed.
    """
    text = '{"b":  1, "a":  2}'
    rows = LeaseRows().read(table(A, B, detail=text, checkpoint="{ }"), "leases")
    said = {"a": 2, "b": 1}
    assert [found.detail for found in rows.leases.values()] == [said, said]
    renewed = {key: found.renewed(detail=dict(said)) for key, found in rows.leases.items()}
    for leases, texts in (
        (renewed, [text, text]),
        ({**renewed, B.key: B}, [text, '{"of": ["b"]}']),
        ({**renewed, C.key: C}, [text, text, '{"of": ["c"]}']),
        ({B.key: renewed[B.key]}, [text]),
    ):
        data, after = rows.write(leases)
        assert data["detail"].to_pylist() == texts
        assert after.leases == fresh(data) == leases
        data, _ = after.write({key: found.renewed() for key, found in after.leases.items()})
        assert data["detail"].to_pylist() == texts


def test_a_row_of_a_newer_hindcast_is_refused_whatever_is_remembered() -> None:
    """Also if nothing else of the row has changed."""
    rows = LeaseRows().read(table(A, B), "leases")
    for known in (LeaseRows(), rows):
        with pytest.raises(SchemaVersionError) as refused:
            known.read(table(A, B, schema_version=SCHEMA_VERSION + 1), "the table")
        assert (refused.value.fields["table"], refused.value.fields["found"]) == (
            "the table",
            SCHEMA_VERSION + 1,
        )
