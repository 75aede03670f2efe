"""Where the archives of topics are, and their columns: one Delta table a topic, below ``archive`` of the
tables' root.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from hindcast.delta.files import filesystem
from hindcast.pipeline import check_topic
from hindcast.settings import Settings

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

#: A record as Kafka has it. ``timestamp_type`` is 0 if the producer set ``timestamp``, and 1 if the broker
#: did. ``headers`` is null if the record has none.
ARCHIVE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("headers", pa.list_(_HEADER)),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
#: Each data file keeps the bounds of these columns, and holds one partition: by them readers skip files.
BOUNDED = ("partition", "offset", "timestamp")


def archive_url(settings: Settings, topic: str) -> str:
    """The table of a topic's archive."""
    return f"{settings.table('archive')}/{check_topic(topic)}"


def archived_topics(settings: Settings) -> list[str]:
    """The topics that have an archive, in order."""
    root = settings.table("archive")
    if "://" not in root and not Path(root).is_dir():
        return []
    store = filesystem(root, settings.storage_options)
    entries = store.get_file_info(FileSelector(""))
    return sorted(entry.base_name for entry in entries if entry.type is FileType.Directory)
