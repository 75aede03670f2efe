"""Who has written to a Delta table: the application ids that its log remembers (Delta protocol, "Transaction Identifiers").

A table's newest checkpoint has one ``txn`` action for each application, also for those whose commits the log has dropped since; the
commits after it have theirs. So this reads one checkpoint and the few commits that follow, however long the table's history is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, PyFileSystem

from hindcast.errors import StoreUnavailableError

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.)?(?:[0-9a-f-]{36}\.)?(?:parquet|json)")
#: A file may be dropped between the listing and its reading; the next listing has a newer checkpoint.
_READINGS = 5


def applications(url: str, storage_options: dict[str, str]) -> set[str]:
    """The ids of all applications that have written to the table; none if there is no table.

    :raises StoreUnavailableError: if the log cannot be read
    """
    options = storage_options or None
    reason: Exception | None = None
    for _ in range(_READINGS):
        try:
            return set(_read(PyFileSystem(DeltaStorageHandler(url, options)))) if DeltaTable.is_deltatable(url, options) else set()
        except FileNotFoundError as error:
            reason = error
        except (DeltaError, OSError, ValueError) as error:
            raise StoreUnavailableError(table=url, action="read", reason=error) from error
    raise StoreUnavailableError(table=url, action="read", reason=reason) from reason


def _read(store: FileSystem) -> Iterator[str]:
    found = store.get_file_info(FileSelector("_delta_log"))
    names = [info.base_name for info in found]
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
    """The version of the newest checkpoint that is whole, and its files; -1 and none where there is none."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            of = int(match[3] or 1)
            parts.setdefault((int(match[1]), of), []).append(name)
    whole = [(version, files) for (version, of), files in parts.items() if len(files) >= of]
    return max(whole, default=(-1, []))


def _of_parquet(store: FileSystem, name: str) -> Iterator[str]:
    with store.open_input_file(f"_delta_log/{name}") as file:
        checkpoint = pq.ParquetFile(file)
        if "txn" not in checkpoint.schema_arrow.names:
            return
        for transaction in checkpoint.read(columns=["txn.appId"])["txn"].to_pylist():
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
