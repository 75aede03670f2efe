"""The faults that a worker can be given: they reach every store by the call that the platform makes, and only
while it is told to.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Commits to each store as the platform does, twice, and says which commits failed; then looks at the clock,
#: and takes two steps.
PROGRAM = """
import sys
from pathlib import Path
from support import faulty_worker
faulty_worker.arm(faulty_worker.Faults(faulty_worker.Told(Path(sys.argv[1]))))
import pyarrow as pa
from datetime import UTC, datetime
from hindcast.clock import SystemClock
from hindcast.leases.delta_store import LeaseTable
from hindcast.leases.lease import Lease, StatusType
from hindcast.tables.table_names import ControlTable
from hindcast.leases.store import swap
from hindcast.tables.control_tables import ControlTables
from hindcast.errors import StoreUnavailableError
from hindcast.settings import Settings
from hindcast.stream.batch_commits import reach
from hindcast.tables.fenced_sink import Fence, FencedTable, Upsert
settings = Settings(home=Path(sys.argv[2]))
tables = ControlTables(settings)
rows = pa.table({"key": ["a"], "n": [1]})
sink = FencedTable(settings.table("sinks", "s"), {}, "p/v1/s0")
sink.create(rows.schema)
tables.open(ControlTable.LATE_ROWS)
audit = FencedTable(tables.url(ControlTable.LATE_ROWS), {}, "p/v1/s0")
for number in (1, 2):
    sink.commit(Fence(1, number), Upsert(rows, ["key"]), after=Fence(1, number - 1) if number > 1 else None)
    audit.commit(Fence(1, number), [], after=Fence(1, number - 1) if number > 1 else None)
    while True:  # a worker keeps its rows and tries again with the next renewal
        try:
            tables.append(ControlTable.CHECKPOINTS, [{"pipeline": "p"}])
            break
        except StoreUnavailableError:
            pass
    swap(LeaseTable(settings), lambda _: [Lease(stream_id="p", status_type=StatusType.SHARD, status_value="s0", lease_owner="w")])
print("ledger rows", len(tables.rows(ControlTable.CHECKPOINTS)))
print("jump", abs((SystemClock().now() - datetime.now(UTC)).total_seconds()) > 1)
for _ in range(2):
    reach("sink.4")
print("alive")
"""


def run(tmp_path: Path, **faults: Any) -> tuple[int, str]:
    """The program's exit code and what it said, told to make these faults."""
    told = tmp_path / "told.json"
    if faults:
        told.write_text(json.dumps(faults))
    command = [sys.executable, "-c", PROGRAM, str(told), str(tmp_path / "home")]
    root = Path(__file__).resolve().parents[3]
    environment = {"PYTHONPATH": f"{root / 'tests'}:{root / 'include'}", "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr[-2000:]
    return done.returncode, done.stdout


def test_without_a_file_nothing_fails(tmp_path: Path) -> None:
    """It is a worker like any other."""
    code, said = run(tmp_path)
    assert (code, said.splitlines()) == (0, ["ledger rows 2", "jump False", "alive"])


@pytest.mark.parametrize("store", ["lease", "sink", "ledger", "audit"])
def test_a_store_fails_after_its_commits(tmp_path: Path, store: str) -> None:
    """Merges, appends and transactions alike: each store fails, and no other, and the caller tries again
    until it is over.
    """
    code, said = run(tmp_path, seed=1, **{store: {"after": 0.5}})
    broken = [line for line in said.splitlines() if line.startswith("The test broke")]
    assert code == 0
    assert set(broken) == {f"The test broke the store {store}: it was written"}


def test_a_clock_jumps(tmp_path: Path) -> None:
    """The wall clock is another one."""
    assert "jump True" in run(tmp_path, wall_hours=1.0)[1]


def test_only_the_first_dies_at_a_step(tmp_path: Path) -> None:
    """At the second time that it comes there; whoever finds the token taken goes on."""
    token = tmp_path / "token"
    # Two commits to the sink and two of the audit come to the step first.
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    code, said = run(first, crash_at="sink.4@6", token=str(token))
    assert (code, "alive" in said, token.exists()) == (-signal.SIGKILL, False, True)
    code, said = run(second, crash_at="sink.4@2", token=str(token))
    assert (code, "alive" in said) == (0, True)
