"""Who has written to a Delta table: the application ids in its log (Delta protocol, "Transaction
Identifiers").

A table's newest checkpoint has one ``txn`` action for each application, also for one whose commits were
deleted from the log since. The commits after the checkpoint have their own. So one checkpoint and the few
commits that follow are enough, however long the table's history is.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSelector, FileSystem

from hindcast.delta.files import filesystem
from hindcast.errors import StoreUnavailableError

_COMMIT = re.compile(r"(\d{20})\.json")
#: Version, part, number of parts.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.)?(?:[0-9a-f-]{36}\.)?(?:parquet|json)"
)
#: A file may be deleted after it was listed. The next listing then has a newer checkpoint.
_READINGS = 5


def applications(url: str, storage_options: dict[str, str]) -> set[str]:
    """The ids of all applications that have written to the table; none if there is no table.

    :raises StoreUnavailableError: if the log cannot be read
    """
    reason: Exception | None = None
    for _ in range(_READINGS):
        try:
            if not DeltaTable.is_deltatable(url, storage_options or None):
                return set()
            store = filesystem(url, storage_options)
            return set(_read(store))
        except FileNotFoundError as error:
            reason = error
        except (DeltaError, OSError, ValueError) as error:
            raise StoreUnavailableError(table=url, action="read", reason=error) from error
    raise StoreUnavailableError(table=url, action="read", reason=reason) from reason


def _read(store: FileSystem) -> Iterator[str]:
    listed = store.get_file_info(FileSelector("_delta_log"))
    names = [info.base_name for info in listed]
    version, checkpoint = _newest_checkpoint(names)
    for name in checkpoint:
        if name.endswith(".parquet"):
            yield from _of_parquet(store, name)
        else:
            yield from _of_json(store, name)
    for name in names:
        commit = _COMMIT.fullmatch(name)
        if commit and int(commit[1]) > version:
            yield from _of_json(store, name)


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint that has all its parts; -1 and none if there is
    none.
    """
    parts: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            continue
        version = int(match[1])
        count = int(match[3] or 1)
        parts[version, count].append(name)
    complete: list[tuple[int, list[str]]] = []
    for (version, count), files in parts.items():
        if len(files) >= count:
            complete.append((version, files))
    return max(complete, default=(-1, []))


def _of_parquet(store: FileSystem, name: str) -> Iterator[str]:
    with store.open_input_file(f"_delta_log/{name}") as file:
        checkpoint = pq.ParquetFile(file)
        if "txn" not in checkpoint.schema_arrow.names:
            return
        transactions = checkpoint.read(columns=["txn.appId"])["txn"]
        for transaction in transactions.to_pylist():
            if transaction is not None and transaction["appId"] is not None:
                yield transaction["appId"]


def _of_json(store: FileSystem, name: str) -> Iterator[str]:
    with store.open_input_stream(f"_delta_log/{name}") as file:
        actions = file.read().decode()
    for line in actions.splitlines():
        if '"txn"' not in line:
            continue
        transaction = json.loads(line).get("txn")
        if transaction is not None:
            yield transaction["appId"]
