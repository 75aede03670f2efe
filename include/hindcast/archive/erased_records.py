"""Records of an archive that were erased: their places stay, and what they held is gone.

Of such a record the archive keeps partition, offset and timestamp. Its key, its value and its headers are
gone, but for one header that says so. Whoever reads it finds a record without a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from hindcast.archive.table import ArchiveTable
from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.errors import StoreUnavailableError, UnknownArchiveError
from hindcast.partitions import Offsets
from hindcast.settings import Settings

#: The only header of an erased record; its value is empty.
ERASED_HEADER = "hindcast-erased"
#: The headers of an erased record.
ERASED_HEADERS = [{"key": ERASED_HEADER, "value": b""}]


def first_erased(settings: Settings, topic: str, places: Mapping[int, Sequence[int]]) -> tuple[int, Offsets]:
    """Of these offsets of a topic's own partitions, how many the archive has as erased, and the first of each
    partition that has any. Without an archive there are none.

    :raises StoreUnavailableError: if the archive cannot be read
    """
    archive = ArchiveTable(settings, topic)
    try:
        table = archive.open()
    except UnknownArchiveError:
        return 0, {}
    count = 0
    firsts: Offsets = {}
    for partition, offsets in places.items():
        wanted = [
            ("partition", "=", partition),
            ("offset", ">=", min(offsets)),
            ("offset", "<=", max(offsets)),
        ]
        these = (
            (pc.field("partition") == partition)
            & pc.field("offset").isin(sorted(offsets))
            & pc.field("value").is_null()
        )
        try:
            rows = arrow_dataset(table, [wanted]).to_table(columns=["offset", "headers"], filter=these)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StoreUnavailableError(table=archive.url, action="read", reason=error) from error
        erased = [row["offset"] for row in rows.to_pylist() if is_erased(row["headers"])]
        if erased:
            count += len(erased)
            firsts[partition] = min(erased)
    return count, firsts


def is_erased(headers: Sequence[Mapping[str, object]] | None) -> bool:
    """Whether these are the headers of an erased record."""
    if not headers:
        return False
    return headers[0]["key"] == ERASED_HEADER
