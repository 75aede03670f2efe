"""An older version of a table: its files, and whether a vacuum may delete one before it is restored."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction
from support.short_log import make_log_short

from hindcast.errors import RewindRefusedError
from hindcast.recovery.restorable_version import RestorableVersion, find_version, live_files, retention_hours
from hindcast.recovery.rewind_point import RewindRequest

#: Hours for which Delta keeps a file that was replaced.
WEEK = 7 * 24
RETENTION = "delta.deletedFileRetentionDuration"

refused = partial(RewindRequest("bar", "the place").refused, cure="the cure")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table of two rows in version 0 and three more, in a second file, in version 1."""
    url = str(tmp_path / "table")
    write_deltalake(url, pa.table({"n": [1, 2]}))
    write_deltalake(url, pa.table({"n": [3, 4, 5]}), mode="append")
    return url


def remove_all(url: str, hours: float) -> None:
    """Commit that the files were replaced so many hours ago."""
    table = DeltaTable(url)
    at_ms = int((time.time() - hours * 3600) * 1000)
    removed = [RemoveAction(file.path, False, at_ms) for file in live_files(table)]
    table.create_write_transaction(removed, "append", table.schema())


def refusal(action: Callable[[], Any]) -> str:
    """The problem for which it is refused; the rest of the error is the caller's."""
    with pytest.raises(RewindRefusedError) as caught:
        action()
    fields = caught.value.fields
    assert (fields["pipeline"], fields["to"], fields["cure"]) == ("bar", "the place", "the cure")
    return str(fields["problem"])


def test_a_version_has_its_own_files(url: str) -> None:
    """With the bytes, the rows and the statistics that a commit names."""
    (file,) = find_version(url, {}, 0, refused).files
    assert file.path in {path.name for path in Path(url).glob("*.parquet")}
    assert file.size == (Path(url) / file.path).stat().st_size
    assert (file.rows, file.stats, file.partition) == (2, '{"numRecords": 2}', {})
    newest = find_version(url, {}, 1, refused)
    assert (newest.number, newest.rows, len(newest.files)) == (1, 5, 2)
    assert file in newest.files
    assert live_files(DeltaTable(url)) == list(newest.files)


def test_a_version_of_the_older_log_can_be_restored(url: str) -> None:
    """Its files are in the table's own folder."""
    before = [find_version(url, {}, number, refused) for number in (0, 1)]
    assert make_log_short(url) == 1
    assert [find_version(url, {}, number, refused) for number in (0, 1)] == before


def test_before_the_first_batch_there_is_no_file(tmp_path: Path) -> None:
    """Version -1 of any table, which nobody looks for."""
    assert find_version(str(tmp_path / "none"), {}, -1, refused) == RestorableVersion(-1, ())
    assert find_version(str(tmp_path / "none"), {}, -1, refused).rows == 0


def test_version_0_is_a_version(url: str) -> None:
    """A table may have been made together with its first rows."""
    assert find_version(url, {}, 0, refused).rows == 2


def test_a_version_of_which_a_file_is_gone_is_refused(url: str) -> None:
    """The file is named."""
    (first,) = find_version(url, {}, 0, refused).files
    (Path(url) / first.path).unlink()
    problem = refusal(lambda: find_version(url, {}, 1, refused))
    assert problem == f"version 1 of its sink is gone (Delta's retention): {first.path}"


def test_a_version_that_the_log_has_lost_is_refused(url: str) -> None:
    """Whatever the store says."""
    problem = refusal(lambda: find_version(url, {}, 7, refused))
    assert problem == "version 7 of its sink is gone (Delta's retention)"


def test_each_access_has_the_stores_options(url: str, options_seen: list[Any]) -> None:
    """To the table and to its files."""
    find_version(url, {"allow_http": "true"}, 1, refused)
    assert len(options_seen) == 2
    assert set(map(str, options_seen)) == {"{'allow_http': 'true'}"}


@pytest.mark.parametrize(
    ("hours", "margin", "near"),
    [(WEEK - 1.1, 1, False), (WEEK - 0.9, 1, True), (WEEK - 23, 24, True), (WEEK - 25, 24, False)],
)
def test_a_file_that_was_replaced_is_near_the_retention_within_the_margin(
    url: str, hours: float, margin: int, near: bool
) -> None:
    """It is still there, but a vacuum that begins now may delete it meanwhile."""
    version = find_version(url, {}, 0, refused)
    remove_all(url, hours)
    check = partial(version.check_age, DeltaTable(url), margin, refused)
    if near:
        problem = refusal(check)
        assert problem.startswith("version 0 of its sink is too near to Delta's retention")
        assert problem.endswith(f"a vacuum may delete {version.files[0].path} meanwhile")
    else:
        check()


def test_a_check_deletes_nothing(url: str) -> None:
    """It asks a vacuum what it would do."""
    version = find_version(url, {}, 1, refused)
    remove_all(url, WEEK + 1)
    refusal(partial(version.check_age, DeltaTable(url), 1, refused))
    assert find_version(url, {}, 1, refused) == version


def test_a_file_that_is_still_named_has_no_age(url: str) -> None:
    """However old others are that the version lacks, and whichever margin is asked."""
    version = find_version(url, {}, 0, refused)
    table = DeltaTable(url)
    old = [file for file in live_files(table) if file not in version.files]
    removed = [RemoveAction(file.path, False, 0) for file in old]
    table.create_write_transaction(removed, "append", table.schema())
    version.check_age(DeltaTable(url), WEEK, refused)


def test_a_file_that_the_log_has_forgotten_is_near_the_retention(url: str) -> None:
    """A vacuum deletes each old file of the folder that no commit names, also if the commit that replaced it
    is not in the log any more.
    """
    version = find_version(url, {}, 0, refused)
    remove_all(url, WEEK + 1)
    old = time.time() - (WEEK + 2) * 3600
    for file in version.files:
        os.utime(Path(url) / file.path, (old, old))
    DeltaTable(url).create_checkpoint()
    for commit in sorted((Path(url) / "_delta_log").glob("*.json")):
        commit.unlink()
    problem = refusal(partial(version.check_age, DeltaTable(url), 1, refused))
    assert "too near to Delta's retention" in problem


def test_another_old_file_is_no_matter(url: str) -> None:
    """Of the files that a vacuum may delete only those of the version count."""
    first = find_version(url, {}, 0, refused).files[0]
    second = next(file for file in find_version(url, {}, 1, refused).files if file != first)
    table = DeltaTable(url)
    now_ms = int(time.time() * 1000)
    removed = [RemoveAction(first.path, False, 0), RemoveAction(second.path, False, now_ms)]
    table.create_write_transaction(removed, "append", table.schema())
    RestorableVersion(1, (second,)).check_age(DeltaTable(url), 1, refused)
    refusal(partial(RestorableVersion(1, (first, second)).check_age, DeltaTable(url), 1, refused))


def test_a_margin_beyond_the_retention_leaves_no_time(url: str) -> None:
    """Whatever was replaced is near: the retention less the margin is no time, not less than none."""
    version = find_version(url, {}, 0, refused)
    remove_all(url, 0.5)
    DeltaTable(url).alter.set_table_properties({RETENTION: "interval 1 hour"})
    version.check_age(DeltaTable(url), 0, refused)
    refusal(partial(version.check_age, DeltaTable(url), 24, refused))


@pytest.mark.parametrize(
    ("configured", "hours"),
    [
        ("interval 1 hour", 1),
        ("interval 53 hours", 53),
        ("interval 1 day", 24),
        ("INTERVAL 3 DAYS", 72),
        (" interval 2 weeks ", 14 * 24),
        ("interval 9 minutes", 0),
    ],
)
def test_the_retention_of_the_table_itself_counts(url: str, configured: str, hours: int) -> None:
    """In whatever unit it is written; one of minutes is less than an hour."""
    DeltaTable(url).alter.set_table_properties({RETENTION: configured})
    assert retention_hours(DeltaTable(url)) == hours


def test_a_table_keeps_replaced_files_for_a_week(url: str) -> None:
    """Delta's own default."""
    assert retention_hours(DeltaTable(url)) == WEEK
