"""Stores that fail: a lost answer, a slow or failing or read-only lease table, a damaged Delta log, a full
disk.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.check_all_oracles import CheckAllOracles
from support.evidence import log_files
from support.fleet import (
    HEALED_SECONDS,
    LEASE_SECONDS,
    PARTITIONS,
    SHARDS,
    START_SECONDS,
    Worker,
    fleet_settings,
)
from support.live_stream import declare
from support.shapes import Shape
from support.waiting import wait_until
from support.warm_fleet import WarmFleet, WarmStream

from hindcast.settings import Settings
from hindcast.shards.pipeline_row import DesiredState
from hindcast_sandbox.load import ensure_topic

if TYPE_CHECKING:
    from conftest import Broker

HEALING_SECONDS = 2 * HEALED_SECONDS
#: How many commits must have failed after they were written, and in how many rounds of records at most.
ENOUGH, ENOUGH_QUICK, MOST_ROUNDS = 6, 2, 60
#: A store that fails more often than this cannot be renewed in for a whole lease.
MOSTLY = 0.9


def stand_still(seconds: float) -> None:
    time.sleep(seconds)  # how long the fault lasts is part of it


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """No file of the folder can be made, renamed or removed; root too is refused."""
    changed = subprocess.run(["chattr", "+i", str(folder)], capture_output=True, text=True, check=False)
    if changed.returncode != 0:
        pytest.skip(f"this file system knows no immutable folder: {changed.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


@pytest.mark.row("F8")
@pytest.mark.parametrize("store", ["lease", "sink", "ledger", "audit", "all"])
def test_a_commit_that_is_written_and_then_fails(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    store: str,
    quick: bool,
) -> None:
    """A third of all commits land without their workers' learning it: they read before they try again, and
    write nothing twice.
    """
    fleet, stores = stream.fleet, ["lease", "sink", "ledger", "audit"] if store == "all" else [store]
    before = {name: fleet.broken(name) for name in stores}
    enough = ENOUGH_QUICK if quick else ENOUGH
    fleet.arm(seed=seed, **{name: {"after": 0.33} for name in stores})

    def broken() -> bool:
        return all(fleet.broken(name) - before[name] >= enough for name in stores)

    for _ in range(MOST_ROUNDS):
        stream.send_more(60)
        stream.wait_read(HEALING_SECONDS)
        if broken():
            break
    wait_until(broken, HEALING_SECONDS, f"commits to {stores} were written and then failed")
    if not quick:
        victim = random.Random(seed).choice(stream.owners())
        fleet.kill(victim)
        stream.wait_owned(without=victim, seconds=LEASE_SECONDS + HEALING_SECONDS)
        stream.send_more(300)
        stream.wait_read(HEALING_SECONDS)
    fleet.disarm()
    prove(stream, healing_seconds=HEALING_SECONDS)


@pytest.mark.row("F9")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("store", ["lease", "sink", "ledger", "audit"])
def test_a_store_that_is_slow_and_fails(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    share: float,
    store: str,
    quick: bool,
) -> None:
    """A store of one worker fails by chance and takes its time: it tries again, or stops itself if it cannot
    renew; another goes on.
    """
    failing = random.Random(seed).choice(pair)
    sound = [process for process in stream.fleet.alive() if process is not failing]
    before = stream.fleet.broken(store)
    stream.fleet.arm([failing], seed=seed, **{store: {"before": share, "slow_seconds": 0.3}})
    for _ in range(2 if quick else 5):
        stream.send_more(150)
        stand_still(LEASE_SECONDS / 2)
    for _ in range(MOST_ROUNDS):
        if stream.fleet.broken(store) > before:
            break
        stream.send_more(20)
        stand_still(LEASE_SECONDS / 2)
    assert stream.fleet.broken(store) > before, "it failed"
    if store == "lease" and share < MOSTLY:
        # Whoever cannot renew at times keeps or loses its shards, and meanwhile all is read.
        stream.wait_read(HEALING_SECONDS)
    stream.fleet.disarm()
    prove(stream, healing_seconds=HEALING_SECONDS, live=store == "lease" and share < MOSTLY)
    assert all(process.poll() is None for process in sound), "the sound workers stay"
    assert failing.poll() in {None, 0, 1}


@pytest.mark.row("F9")
def test_a_lease_table_that_is_read_only(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """While nobody can renew, every owner stops before its lease would expire; when the table can be written
    again all goes on.
    """
    log = Path(stream.settings.table("control", "leases")) / "_delta_log"
    with read_only(log):
        stream.send_more(200)
        stand_still(LEASE_SECONDS)
        held = stream.committed()
        stream.send_more(200)
        stand_still(1.5 * LEASE_SECONDS)
        sink = Path(stream.settings.table("sinks", stream.name))
        late = [path for path in log_files(sink) if path.stat().st_mtime > _renewed_at(log) + LEASE_SECONDS]
        assert late == [], "no commit later than a whole lease after the last renewal"
        assert stream.committed() == held
    stream.fleet.whole()
    prove(stream, "lease_lost", live=False, healing_seconds=HEALING_SECONDS)


def _renewed_at(log: Path) -> float:
    return log_files(log.parent)[-1].stat().st_mtime


@pytest.mark.row("F9")
def test_a_sink_whose_log_is_read_only(
    stream: WarmStream, pair: tuple[Worker, Worker], prove: CheckAllOracles, seed: int
) -> None:
    """Batches fail, an event says so and what to do, and once it can be written each is there once."""
    with read_only(Path(stream.settings.table("sinks", stream.name)) / "_delta_log"):
        stream.send_more(200)
        event = stream.wait_event("query_failed")
        assert event["cure"]
        assert "Traceback" not in event["message"], "it names the cause"
    prove(stream, "query_failed", healing_seconds=HEALING_SECONDS)


def torn(newest: Path) -> None:
    newest.write_text(newest.read_text()[:40])


def empty(newest: Path) -> None:
    newest.write_text("")


def missing(newest: Path) -> None:
    """A version in the middle."""
    newest.with_name(f"{int(newest.stem) - 1:020}.json").unlink()


def missing_newest(newest: Path) -> None:
    newest.unlink()


def stale_checkpoint(newest: Path) -> None:
    """A hint that names a checkpoint which is not there."""
    newest.with_name("_last_checkpoint").write_text('{"version": 1, "size": 3}')


@pytest.mark.row("F11")
@pytest.mark.parametrize("damage", [torn, empty, missing, missing_newest, stale_checkpoint])
def test_a_damaged_log_of_the_sink(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    damage: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    """No version is skipped: the shards are not consumed, an event says why, and with the log as it was they
    go on exactly.
    """
    stream.pause()
    log = Path(stream.settings.table("sinks", stream.name)) / "_delta_log"
    shutil.copytree(log, tmp_path / "log")
    damage(log_files(log.parent)[-1])
    before = {path.name for path in log_files(log.parent)}
    stream.want()
    stream.send_more(200)
    wait_until(
        lambda: stream.events("query_failed", "shard_refused"), START_SECONDS, "the damage is an event"
    )
    assert {path.name for path in log_files(log.parent)} == before, "nothing is written on top of the damage"
    stream.want(DesiredState.PAUSED)
    stream.wait_free()
    _restore(tmp_path / "log", log)
    stream.want()
    prove(stream, live=False, healing_seconds=HEALING_SECONDS)


@pytest.mark.row("F11")
@pytest.mark.parametrize("damage", [torn, empty, missing, stale_checkpoint])
def test_a_damaged_log_of_the_leases(
    stream: WarmStream,
    pair: tuple[Worker, Worker],
    prove: CheckAllOracles,
    seed: int,
    damage: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    """A worker does not start on it and says which table it is, or does not need what is gone: a checkpoint
    holds it.
    """
    stream.send_more(200)
    for process in stream.fleet.alive():
        stream.fleet.kill(process)
    log = Path(stream.settings.table("control", "leases")) / "_delta_log"
    shutil.copytree(log, tmp_path / "log")
    damaged = log_files(log.parent)[-1]
    damage(damaged)
    before = {path.name for path in log_files(log.parent)}
    process = stream.fleet.start()
    said = stream.fleet.log(stream.fleet.started.index(process))
    wait_until(
        lambda: process.poll() is not None or "holds slot" in said.read_text(),
        START_SECONDS,
        "the worker has ended or started",
    )
    if process.poll() is not None:
        assert process.returncode != 0
        assert log.parent.name in said.read_text()
        assert {path.name for path in log_files(log.parent)} == before, (
            "nothing is written on top of the damage"
        )
        _restore(tmp_path / "log", log)
    else:
        shutil.copy2(
            tmp_path / "log" / damaged.name, damaged
        )  # the oracles read the whole history, as no worker does
    stream.fleet.whole()
    prove(stream, live=False, healing_seconds=HEALING_SECONDS)


def _restore(kept: Path, log: Path) -> None:
    for path in log.iterdir():
        if not (kept / path.name).exists():
            path.unlink()
    shutil.copytree(kept, log, dirs_exist_ok=True)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A disk of its own for the folder."""
    folder.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.row("F13")
@pytest.mark.parametrize("disk", ["tables", "checkpoints", "tmp", "tmp of new workers"])
def test_a_full_disk(
    broker: Broker,
    topic: str,
    shape: Shape,
    settings_factory: Callable[..., Settings],
    prove: CheckAllOracles,
    seed: int,
    disk: str,
) -> None:
    """The disk of the tables, of Spark's checkpoints or of Spark's own files is full for two leases, then
    freed: all goes on, exactly. New workers have not even unpacked the libraries of their classes yet.
    """
    folder_name, _, young = disk.partition(" of ")
    fleet = WarmFleet(fleet_settings(settings_factory(), broker.bootstrap_servers), spares=0)
    for own in shape.topics(topic)[1:]:
        ensure_topic(broker.bootstrap_servers, own, PARTITIONS)
    declare(fleet.settings, topic, shards=SHARDS, shape=shape)
    stream = WarmStream(fleet, topic, seed=seed, shape=shape)
    with small_disk(fleet.settings.home / folder_name, 192 if folder_name == "tmp" else 64) as folder:
        try:
            fleet.whole()
            if young:
                _fill(folder / "ballast")
            stream.want()
            stream.send_more()
            stream.wait_shared()
            if not young:
                stream.wait_read()
                _fill(folder / "ballast")
            stream.send_more(random.Random(seed).randrange(200, 400))
            if young:
                wait_until(lambda: stream.events("query_failed"), START_SECONDS, "a query has failed")
            stand_still(2 * LEASE_SECONDS)
            (folder / "ballast").unlink()
            fleet.whole()
            prove(stream, live=False, healing_seconds=HEALING_SECONDS)
            if disk == "checkpoints":
                assert stream.events("query_failed")
            for number in range(len(fleet.started)):
                assert "UnsatisfiedLinkError" not in fleet.log(number).read_text(errors="replace")
        finally:
            fleet.end()
            fleet.history.stop()


def _fill(path: Path) -> None:
    """Write until there is no room for a single block."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
