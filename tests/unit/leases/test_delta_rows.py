"""Leases as rows: whatever is remembered, the rows written and the leases read are those of somebody who remembers nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.leases.delta_rows import LeaseRows
from hindcast.leases.lease import Lease, LeaseKey, StatusType

INSTANTS = st.none() | st.integers(0, 3).map(lambda seconds: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
JSON = st.dictionaries(st.sampled_from(["batch", "end_offsets"]), st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2), max_size=2)
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


def fresh(data: pa.Table) -> dict[LeaseKey, Lease]:
    """The leases of a table as somebody finds them who has read no other version."""
    return dict(LeaseRows().read(data, "leases").leases)


@settings(deadline=None)
@given(VERSIONS)
def test_what_is_remembered_changes_nothing(versions: list[tuple[int, list[Lease]]]) -> None:
    """Two clients write versions of the table by turns, and each reads the other's: both find what a third finds, in its order."""
    clients = [LeaseRows(), LeaseRows()]
    for writer, leases in versions:
        wanted = {lease.key: lease for lease in leases}
        data, clients[writer] = clients[writer].write(wanted)
        clients[1 - writer] = clients[1 - writer].read(data, "leases")
        assert data.equals(LeaseRows().write(wanted)[0])
        assert fresh(data) == wanted
        for client in clients:
            assert [*client.leases.items()] == [*fresh(data).items()]


@settings(deadline=None)
@given(VERSIONS)
def test_a_version_that_was_missed_changes_nothing(versions: list[tuple[int, list[Lease]]]) -> None:
    """A client that reads only some versions, as others are faster, finds in each what it says."""
    writer, reader = LeaseRows(), LeaseRows()
    for missed, leases in versions:
        data, writer = writer.write({lease.key: lease for lease in leases})
        if not missed:
            reader = reader.read(data, "leases")
            assert [*reader.leases.items()] == [*fresh(data).items()]


@settings(deadline=None)
@given(VERSIONS)
def test_rows_in_another_order_are_read_as_they_are_and_written_in_ours(versions: list[tuple[int, list[Lease]]]) -> None:
    """Somebody else's tool may write the same rows the other way round; what is read of them is the same."""
    rows = LeaseRows()
    for turned, leases in versions:
        wanted = {lease.key: lease for lease in leases}
        data = LeaseRows().write(wanted)[0]
        rows = rows.read(data[::-1] if turned else data, "leases")
        assert rows.leases == fresh(data)
        renewed = {key: lease.renewed() for key, lease in rows.leases.items()}
        written, after = rows.write(renewed)
        assert written.equals(LeaseRows().write(renewed)[0])
        assert [*after.leases.items()] == [*fresh(written).items()]
