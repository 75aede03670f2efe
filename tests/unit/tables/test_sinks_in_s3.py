"""What a batch's commit asks of an object store."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.s3_server import S3Server, s3_server

from hindcast.delta.files import DataFile
from hindcast.tables.fenced_sink import Fence, FencedTable

#: A commit reads what has come since the table's last checkpoint: at most ten entries, half of them in the mean.
MOST_REQUESTS = 25
BATCHES = 60


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made


def test_a_commit_asks_no_more_the_longer_the_log_is(store: S3Server) -> None:
    """The entries since the last checkpoint are read again for each commit, and they stay few."""
    table = FencedTable(store.folder("sink"), store.options, "p/v1/v1.g0.s0")
    table.create(pa.schema([("word", pa.string())]))
    table.commit(Fence(1, 1), [_file(1)])
    before = sum(store.requests().values())
    for batch in range(2, BATCHES + 2):
        table.commit(Fence(1, batch), [_file(batch)], after=Fence(1, batch - 1))
    assert (sum(store.requests().values()) - before) / BATCHES < MOST_REQUESTS


def _file(number: int) -> DataFile:
    return DataFile(f"b{number}.parquet", 1_000, 100, '{"numRecords": 100}')
