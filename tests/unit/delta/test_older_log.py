"""The log of a sink stays short, and each version of it is found all the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.delta.arrow_dataset import arrow_dataset
from hindcast.delta.commit import commits_down, read_commit
from hindcast.delta.older_log import expire_older_log, is_in_older_log, open_version, shorten_log
from hindcast.errors import StoreUnavailableError

HOUR = 3600.0


def age(folder: Path, hours: float, upto: int) -> None:
    """Let the files of the versions up to this one be so much older."""
    at = time.time() - hours * HOUR
    for path in folder.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) <= upto:
            os.utime(path, (at, at))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Twelve versions, checkpoints at 3, 6 and 9; those up to 7 are a day old."""
    made = str(tmp_path / "t")
    for number in range(12):
        write_deltalake(made, pa.table({"n": [number]}), mode="append")
        if number in (3, 6, 9):
            DeltaTable(made).create_checkpoint()
    DeltaTable(made).delete("n = 0")
    age(log(made), 24, upto=7)
    return made


def log(url: str) -> Path:
    return Path(url, "_delta_log")


def older(url: str) -> Path:
    return Path(url, "_older", "_delta_log")


def versions(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json"))


def values(url: str, version: int) -> list[int]:
    dataset = arrow_dataset(open_version(url, {}, version), folder=url)
    return sorted(dataset.to_table()["n"].to_pylist())


def every_version(url: str) -> list[list[int]]:
    return [values(url, version) for version in range(13)]


def test_the_log_begins_at_the_last_checkpoint_that_is_old(url: str) -> None:
    """What was before it is in the older log, and each version has the rows that it had."""
    before = every_version(url)
    assert shorten_log(url, 12.0) == 7  # versions 0 to 5, and the checkpoint at 3
    assert (versions(log(url)), versions(older(url))) == (list(range(6, 13)), list(range(6)))
    assert every_version(url) == before
    assert [is_in_older_log(url, version) for version in (5, 6)] == [True, False]
    assert DeltaTable(url).version() == 12
    assert [entry["version"] for entry in commits_down(url, {}, 12)] == list(range(12, -1, -1))
    assert shorten_log(url, 12.0) == 0
    with pytest.raises(StoreUnavailableError):
        open_version(url, {}, 13)


def test_nothing_moves_before_a_checkpoint_is_old(url: str) -> None:
    """Nor is a folder made. Delta's reader begins at a checkpoint."""
    assert shorten_log(url, 48.0) == 0
    assert not older(url).exists()
    assert shorten_log("s3://bucket/t", 1.0) == expire_older_log("s3://bucket/t", 1.0) == 0
    assert shorten_log(f"{url}/none", 1.0) == 0


def test_a_vacuum_leaves_the_older_log_alone(url: str) -> None:
    """Also one that deletes every file that the table does not name."""
    shorten_log(url, 12.0)
    kept = versions(older(url))
    at = time.time() - 30 * 24 * HOUR
    for path in older(url).iterdir():
        os.utime(path, (at, at))
    DeltaTable(url).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert versions(older(url)) == kept


@pytest.mark.parametrize("steps", range(1, 15))
def test_a_death_in_the_middle_loses_no_version(
    url: str, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Between any two of its links and deletions; the next one goes on."""
    before = every_version(url)
    left = [steps]

    class Killed(BaseException):
        pass

    def counted(works: object) -> object:
        def call(*arguments: object, **options: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return works(*arguments, **options)  # type: ignore[operator]

        return call

    with monkeypatch.context() as dying:
        dying.setattr(os, "link", counted(os.link))
        dying.setattr(Path, "unlink", counted(Path.unlink))
        if steps < 14:
            with pytest.raises(Killed):
                shorten_log(url, 12.0)
        else:
            shorten_log(url, 12.0)
    assert every_version(url) == before
    assert DeltaTable(url).version() == 12
    shorten_log(url, 12.0)
    assert every_version(url) == before
    assert versions(log(url)) == list(range(6, 13))


def test_a_stray_entry_in_a_gap_is_dropped(url: str) -> None:
    """A process that slept may have written it: the true one is in the older log already."""
    before = every_version(url)
    shorten_log(url, 12.0)
    stray = log(url) / f"{4:020d}.json"
    stray.write_text('{"commitInfo": {"operation": "STRAY"}}')
    assert every_version(url) == before
    said = read_commit(url, {}, 4)
    assert said is not None
    assert said["operation"] == "WRITE"
    shorten_log(url, 12.0)
    assert not stray.exists()
    assert every_version(url) == before


def test_the_older_log_is_kept_for_its_time(url: str) -> None:
    """From a checkpoint on, so that what is left of it can be read."""
    before = every_version(url)
    age(log(url), 24, upto=12)
    shorten_log(url, 12.0)
    assert versions(log(url)) == [9, 10, 11, 12]
    age(older(url), 30 * 24, upto=4)
    assert expire_older_log(url, 8 * 24.0) == 3
    assert versions(older(url)) == [3, 4, 5, 6, 7, 8]
    assert [values(url, version) for version in range(3, 13)] == before[3:]
    with pytest.raises(StoreUnavailableError):
        open_version(url, {}, 2)
