"""A checkpoint is deleted once no shard goes on from it, and not before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.ledger_rows import batch

from hindcast.errors import StoreUnavailableError
from hindcast.installation import Installation
from hindcast.leases.lease import Lease, StatusType
from hindcast.leases.store import swap
from hindcast.recovery.forgotten_checkpoints import delete_forgotten_checkpoints
from hindcast.recovery.rewind_point import reset_row
from hindcast.tables.ledger import Ledger

DECLARED: list[Any] = [SimpleNamespace(name="p"), SimpleNamespace(name="p")]
SHARD = "v1.g0.s0"


def checkpoint(installation: Installation, name: str, days: float, pipeline: str = "p") -> Path:
    """A folder to which nothing was written for so long."""
    folder = Path(installation.settings.checkpoint(pipeline, name))
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text("x")
    at = time.time() - days * 86_400
    for path in (folder / "offsets" / "0", folder / "offsets", folder):
        os.utime(path, (at, at))
    return folder


def names(installation: Installation, pipeline: str = "p") -> list[str]:
    return sorted(path.name for path in Path(installation.settings.checkpoint(pipeline)).glob("*"))


def delete(installation: Installation) -> list[str]:
    return [Path(path).name for path in delete_forgotten_checkpoints(installation, DECLARED)]


def lease(installation: Installation, shard: str) -> None:
    row = Lease(stream_id="p", status_type=StatusType.SHARD, status_value=shard)
    swap(installation.lease_table, lambda _: [row])


def test_the_checkpoints_of_the_last_batches_stay(installation: Installation) -> None:
    """Whatever their age; of others those that were written within a week. Those of other pipelines, and what is
    no checkpoint, are nobody's to delete.
    """
    for name in ("v1.g0.s0", "v1.g0.s0.a", "v1.g0.s0.b", "v1.g0.s1", "v2.g0.s0.a", "other"):
        checkpoint(installation, name, 30)
    checkpoint(installation, "v1.g0.s0.c", 6.9)
    checkpoint(installation, "v1.g0.s0", 30, pipeline="q")
    first = batch(1, {0: 0}, {0: 1}, shard=SHARD, checkpoint="v1.g0.s0")
    second = batch(2, {0: 1}, {0: 2}, shard=SHARD, checkpoint="v1.g0.s0.b")
    installation.ledger.append([first, second])
    lease(installation, "v1.g0.s1")
    assert delete(installation) == ["v1.g0.s0", "v1.g0.s0.a", "v2.g0.s0.a"]
    assert names(installation) == ["other", "v1.g0.s0.b", "v1.g0.s0.c", "v1.g0.s1"]
    assert names(installation, "q") == ["v1.g0.s0"]
    assert delete(installation) == []


def test_a_shard_without_a_named_folder_goes_on_in_its_first(installation: Installation) -> None:
    """A row of an older Hindcast names none."""
    checkpoint(installation, SHARD, 30)
    installation.ledger.append([batch(1, {0: 0}, {0: 1}, shard=SHARD)])
    assert delete(installation) == []


def test_what_a_rewind_took_back_stays_as_long_as_what_it_kept(installation: Installation) -> None:
    """Both are last batches, until the next one."""
    for name in ("a", "b", "c"):
        checkpoint(installation, f"{SHARD}.{name}", 30)
    rows = [
        batch(number, {0: 0}, {0: 1}, shard=SHARD, checkpoint=f"{SHARD}.{name}")
        for number, name in enumerate("abc", 1)
    ]
    installation.ledger.append([*rows, reset_row("p", 1, "t", SHARD, 2, 9, {0: 0}, 9)])
    assert delete(installation) == [f"{SHARD}.a"]


def test_nothing_is_deleted_if_the_ledger_cannot_be_read(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and left to the next time."""
    checkpoint(installation, SHARD, 30)

    def away(*_: object) -> None:
        raise StoreUnavailableError(table="t", action="read", reason="away")

    with monkeypatch.context() as while_away, capture_logs() as logs:
        while_away.setattr(Ledger, "reached", away)
        assert delete(installation) == []
    (warning,) = logs
    assert (warning["log_level"], warning["pipeline"]) == ("warning", "p")
    assert delete(installation) == [SHARD]


def test_the_folder_in_which_a_query_runs_stays(installation: Installation) -> None:
    """No batch names it yet: nothing came since its owner has rebuilt the state. An earlier owner's goes."""
    for name in (f"{SHARD}.r5.e3", f"{SHARD}.x5.e3.0a1b2c3d", f"{SHARD}.r5.e2", f"{SHARD}.r5.e31"):
        checkpoint(installation, name, 8)
    row = Lease(stream_id="p", status_type=StatusType.SHARD, status_value=SHARD, epoch=3, lease_owner="w")
    swap(installation.lease_table, lambda _: [row])
    assert sorted(delete(installation)) == [f"{SHARD}.r5.e2", f"{SHARD}.r5.e31"]
    assert names(installation) == [f"{SHARD}.r5.e3", f"{SHARD}.x5.e3.0a1b2c3d"]
