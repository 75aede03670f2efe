"""A dead letter of one version is not sent again if another running version has read the record itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.arrow_memory import arrow_memory
from support.inactive_version import NAME, begin
from support.ledger_rows import batch

from hindcast import catalog
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.settings import Settings
from hindcast.tables.table_names import ControlTable
from hindcast.versions.letters_read import refuse_letters_read


def file(installation: Installation, version: int, *offsets: int, partition: int = 0) -> None:
    """Letters of the version."""
    rows = []
    for offset in offsets:
        row = {"pipeline": NAME, "version": version, "topic": "t", "partition": partition, "offset": offset}
        rows.append(row)
    installation.tables.append(ControlTable.DEAD_LETTERS, rows)


def read(installation: Installation, version: int, start: int, end: int) -> None:
    """The version has read these offsets."""
    shard = f"v{version}.g0.s0"
    row = batch(1, {0: start}, {0: end}, pipeline=NAME, version=version, shard=shard)
    installation.ledger.append([row])


def test_a_letter_that_another_version_has_read_is_refused(two: Settings, tmp_path: Path) -> None:
    """It would count twice there. One that is a dead letter there, too, that it has not come to, or that came
    before its beginning may be sent; and what one version that is not running has read matters to nobody.
    """
    installation = Installation(two)
    pipeline = catalog.load(tmp_path)[NAME]
    file(installation, 1, 2, 3, 5, 9, 10)
    file(installation, 1, 4, partition=1)
    file(installation, 2, 5)
    file(installation, 2, 3, 9, partition=1)
    read(installation, 1, 0, 20)
    read(installation, 2, 3, 10)
    harmless = [("t", 0, 2), ("t", 0, 5), ("t", 0, 10), ("t", 1, 4)]
    read_by_the_other = [("t", 0, 3), ("t", 0, 9)]
    refuse_letters_read(installation, pipeline, [*harmless, *read_by_the_other])
    begin(two)
    refuse_letters_read(installation, pipeline, harmless)
    for letter in read_by_the_other:
        with pytest.raises(BadInputError, match=f"t/0/{letter[2]} is no dead letter of version 2") as refused:
            refuse_letters_read(installation, pipeline, [*harmless, letter])
        assert "Leave it out" in str(refused.value)
    refuse_letters_read(installation, pipeline, [])


def test_the_active_version_counts_as_well(two: Settings, tmp_path: Path) -> None:
    """It was promoted after it had read the record that the older version could not use."""
    installation = Installation(two)
    pipeline = catalog.load(tmp_path)[NAME]
    file(installation, 2, 4)
    read(installation, 1, 0, 20)
    with pytest.raises(BadInputError, match="version 1"):
        refuse_letters_read(installation, pipeline, [("t", 0, 4)])


def test_the_letters_values_are_not_read(two: Settings, tmp_path: Path) -> None:
    """However many and large the letters are."""
    installation = Installation(two)
    pipeline = catalog.load(tmp_path)[NAME]
    for offset in range(12):
        row = {"pipeline": NAME, "version": 1, "topic": "t", "partition": 0, "offset": offset}
        installation.tables.append(ControlTable.DEAD_LETTERS, [{**row, "value": os.urandom(1_000_000)}])
    read(installation, 1, 0, 20)
    with arrow_memory() as memory:
        refuse_letters_read(installation, pipeline, [("t", 0, offset) for offset in range(12)])
    assert memory.max_memory() < 5_000_000
