"""An empty commit file is never taken for a commit that did nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.delta.commit import read_commit
from hindcast.delta.empty_commits import refuse_empty_commits
from hindcast.errors import StoreUnavailableError


@pytest.mark.parametrize("hint", [True, False])
@pytest.mark.parametrize(("empty", "refused"), [(1, False), (3, True), (5, True)])
def test_an_empty_commit_is_refused_if_it_would_be_read(
    tmp_path: Path, empty: int, refused: bool, hint: bool
) -> None:
    """That is one after the last checkpoint, whether or not the log has Delta's hint at that. The error names
    the file, and what to do.
    """
    url = str(tmp_path / "t")
    for number in range(6):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")
        if number == 2:
            DeltaTable(url).create_checkpoint()
    log = Path(url) / "_delta_log"
    if not hint:
        (log / "_last_checkpoint").unlink()
    refuse_empty_commits(url)
    (log / f"{empty:020d}.json").write_text("")
    if not refused:
        refuse_empty_commits(url)
        return
    with pytest.raises(
        StoreUnavailableError, match=f"could not be read: the commit {empty:020d}.json .*restore that file"
    ) as caught:
        refuse_empty_commits(url)
    assert caught.value.fields["table"] == url


def test_a_reader_of_old_commits_takes_none_for_one_that_did_nothing(tmp_path: Path) -> None:
    """What is read by its name is refused, too, whatever the checkpoint says."""
    url = str(tmp_path / "t")
    for number in range(2):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")
    DeltaTable(url).create_checkpoint()
    (Path(url) / "_delta_log" / f"{0:020d}.json").write_text("")
    with pytest.raises(StoreUnavailableError, match=f"the commit {0:020d}.json"):
        read_commit(url, {}, 0)


def test_a_hint_that_is_too_old_is_not_followed(tmp_path: Path) -> None:
    """The commits after the checkpoint that it names are deleted, so only a listing tells what comes next. A
    torn hint is none.
    """
    url = str(tmp_path / "t")
    log = Path(url) / "_delta_log"
    for number in range(6):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")
        if number in (1, 4):
            DeltaTable(url).create_checkpoint()
        if number == 1:
            old = (log / "_last_checkpoint").read_text()
    for number in range(4):
        (log / f"{number:020d}.json").unlink()
    (log / f"{5:020d}.json").write_text("")
    for hint in (old, old[:7], "[]"):
        (log / "_last_checkpoint").write_text(hint)
        with pytest.raises(StoreUnavailableError, match=f"the commit {5:020d}.json"):
            refuse_empty_commits(url)


def test_an_empty_commit_is_refused_if_nothing_was_checkpointed_yet(tmp_path: Path) -> None:
    """Every reader begins at the first commit then."""
    url = str(tmp_path / "t")
    for number in range(2):
        write_deltalake(url, pa.table({"n": [number]}), mode="append")
    (Path(url) / "_delta_log" / f"{0:020d}.json").write_text("")
    with pytest.raises(StoreUnavailableError, match=f"the commit {0:020d}.json"):
        refuse_empty_commits(url)


def test_only_a_log_on_this_machine_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store has no parts of objects. A table that does not exist has no log. An empty file of
    another kind is no commit.
    """
    monkeypatch.chdir(tmp_path)
    for folder, ending in (("s3:/bucket/t", "json"), ("other", "json.tmp")):
        log = tmp_path / folder / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020d}.{ending}").write_text("")
    refuse_empty_commits("s3://bucket/t")
    refuse_empty_commits(str(tmp_path / "nothing"))
    refuse_empty_commits(str(tmp_path / "other"))


def test_a_commit_that_is_deleted_meanwhile_does_not_end_the_search_for_empty_ones(tmp_path: Path) -> None:
    """The log's cleanup may delete a file after the folder was listed. Here such files are links to
    nothing.
    """
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    for version in range(30):
        (log / f"{version:020d}.json").symlink_to(tmp_path / "nothing")
    empty = log / f"{30:020d}.json"
    empty.write_text("")
    for version in range(31, 60):
        (log / f"{version:020d}.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreUnavailableError, match=empty.name):
        refuse_empty_commits(str(tmp_path / "t"))
