"""What a speed benchmark counts on: its load, its arithmetic and its check of every side's answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.speed.goals import table_of_goals
from benchmarks.speed.jobs import COPY, WINDOWS
from benchmarks.speed.measure import (
    Commit,
    commits_of_flink,
    commits_of_plain,
    latencies,
    read_at_ms,
    rows_of_flink,
)
from benchmarks.speed.record import Record, record_of
from benchmarks.speed.report import BEGIN, END, table, write_page
from benchmarks.speed.workload import HEAD, SLIDE_MS, WINDOW_MS, Workload
from deltalake import write_deltalake
from support.benchmark_figures import percentile

START_MS = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp() * 1000) + 250
LOAD = Workload(rate=50.0, seconds=12.0, partitions=3, seed=7)


def test_a_load_is_the_same_each_time() -> None:
    """In order, each ticker in one partition, and as many as the rate says."""
    trades = list(LOAD.trades(START_MS))
    assert trades == list(LOAD.trades(START_MS))
    assert len(trades) == LOAD.rows == 600
    assert [trade.event_ms for trade in trades] == sorted(trade.event_ms for trade in trades)
    assert trades[25].event_ms == START_MS + 500
    assert len({(trade.ticker, trade.partition) for trade in trades}) == len(
        {trade.ticker for trade in trades}
    )
    assert trades != list(replace(LOAD, seed=8).trades(START_MS))


def test_a_load_is_encoded_as_it_is_sent(tmp_path: Path) -> None:
    """The sender needs nothing else than the file."""
    file = tmp_path / "load"
    LOAD.encode(file, START_MS)
    content = file.read_bytes()
    at = 0
    for trade in LOAD.trades(START_MS):
        partition, key, value = HEAD.unpack_from(content, at)
        at += HEAD.size
        assert (partition, content[at : at + key]) == (trade.partition, trade.ticker.encode())
        at += key
        fields = json.loads(content[at : at + value])
        at += value
        assert datetime.fromisoformat(fields["ts"]).timestamp() * 1000 == pytest.approx(trade.event_ms)
        assert fields["ask"] * 64 == trade.sixty_fourths
    assert at == len(content)


def test_the_answer_is_that_of_each_window() -> None:
    """Counted once more, window by window."""
    trades = list(LOAD.trades(START_MS))
    answers = LOAD.answers(START_MS)
    first = START_MS // SLIDE_MS * SLIDE_MS + SLIDE_MS
    for end in range(first, first + 20_000, SLIDE_MS):
        inside = [trade for trade in trades if end - WINDOW_MS <= trade.event_ms < end]
        for ticker in {trade.ticker for trade in trades}:
            of_ticker = [trade.sixty_fourths for trade in inside if trade.ticker == ticker]
            expected = (len(of_ticker), min(of_ticker) / 64, sum(of_ticker)) if of_ticker else None
            assert answers.get((ticker, end)) == expected


def brute(sample: tuple[int, int, int], commits: list[Commit]) -> float:
    partition, offset, appended_ms = sample
    return next((c.at_ms - appended_ms) / 1000 for c in commits if c.ends.get(partition, 0) > offset)


def test_a_record_is_visible_with_the_first_commit_that_has_it() -> None:
    """Commits may leave a partition out, or bring nothing of it."""
    rng = random.Random(3)
    commits = []
    ends = {0: 0, 1: 0}
    for number in range(50):
        for partition in ends:
            ends[partition] += rng.randrange(3)
        some = {partition: end for partition, end in ends.items() if rng.random() < 0.8}
        commits.append(Commit(1000.0 + 10 * number, some))
    commits.append(Commit(9999.0, dict(ends)))
    samples = [
        (partition, offset, rng.randrange(1000)) for partition, end in ends.items() for offset in range(end)
    ]
    assert latencies(samples, commits) == [pytest.approx(brute(sample, commits)) for sample in samples]
    with pytest.raises(SystemExit, match=f"No commit has offset {ends[1]} of partition 1"):
        latencies([(1, ends[1], 0)], commits)
    with pytest.raises(SystemExit, match="No commit has offset 0 of partition 5"):
        latencies([(5, 0, 0)], commits)


def test_a_burst_comes_at_once_and_happens_at_the_rate() -> None:
    """So it closes windows as the rest does, and the answer has it."""
    load = replace(LOAD, burst=100)
    trades = list(load.trades(START_MS))
    assert trades[: LOAD.rows] == list(LOAD.trades(START_MS))
    assert {trade.due_seconds for trade in trades[LOAD.rows :]} == {LOAD.seconds}
    assert trades[-1].event_ms == START_MS + int(699 / LOAD.rate * 1000)
    assert sum(count for count, _, _ in load.answers(START_MS).values()) == 700 * (WINDOW_MS // SLIDE_MS)


def test_a_load_is_read_with_the_commit_that_has_the_last_of_it() -> None:
    """Whatever the order of the partitions; a commit may repeat what one before had."""
    commits = [Commit(10.0, {0: 5}), Commit(20.0, {1: 4}), Commit(30.0, {0: 5, 1: 5}), Commit(40.0, {0: 6})]
    assert read_at_ms(commits, 9) == 20.0
    assert read_at_ms(commits, 10) == 30.0
    with pytest.raises(SystemExit, match="Only 11 of 12"):
        read_at_ms(commits, 12)


def test_percentiles_are_values_that_were_measured() -> None:
    """The least one that is enough."""
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [percentile(values, share) for share in (0.0, 0.2, 0.5, 0.8, 0.81, 1.0)] == [1, 1, 3, 4, 5, 5]


def test_commits_of_a_plain_stream_come_from_its_files(tmp_path: Path) -> None:
    """When, from Delta's log; how far, from Spark's plan. Without a table, from Spark's own note."""
    offsets = tmp_path / "checkpoint" / "offsets"
    log = tmp_path / "table" / "_delta_log"
    noted = tmp_path / "checkpoint" / "commits"
    for folder in (offsets, log, noted):
        folder.mkdir(parents=True)
    for batch in range(3):
        plan = ["v1", '{"batchWatermarkMs":0}', json.dumps({"t": {"0": 10 * batch + 10, "1": batch}})]
        (offsets / str(batch)).write_text("\n".join(plan))
        (noted / str(batch)).write_text("v1")
    (log / f"{0:020}.json").write_text('{"metaData":{}}\n')
    for batch in range(2):
        actions = [{"commitInfo": {}}, {"txn": {"appId": "a", "version": batch}}]
        (log / f"{batch + 1:020}.json").write_text("\n".join(json.dumps(action) for action in actions))
    commits = commits_of_plain(tmp_path, "t")
    assert [dict(commit.ends) for commit in commits] == [{0: 10, 1: 0}, {0: 20, 1: 1}]
    assert commits[1].at_ms == (log / f"{2:020}.json").stat().st_mtime * 1000
    for path in log.iterdir():
        path.unlink()
    log.rmdir()
    assert [dict(commit.ends)[0] for commit in commits_of_plain(tmp_path, "t")] == [10, 20, 30]


def rows(until_seconds: int) -> Iterator[dict[str, Any]]:
    """What a side has written once the windows up to so many seconds after the start are closed."""
    for (ticker, end), (count, least, total) in LOAD.answers(START_MS).items():
        if end <= START_MS + until_seconds * 1000:
            yield {
                "end_ms": end,
                "ticker": ticker,
                "trades": count,
                "min_ask": least,
                "avg_ask": total / 64 / count,
            }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: found[1:], "differs in 1 of"),
        (lambda found: [*found, found[3]], "1 rows more than once"),
        (lambda found: [{**found[0], "trades": found[0]["trades"] + 1}, *found[1:]], "differs in 1 of"),
        (lambda found: [{**found[0], "avg_ask": found[0]["avg_ask"] + 1}, *found[1:]], "differs in 1 of"),
        (lambda found: [{**found[0], "ticker": "T999"}, *found[1:]], "differs in 2 of"),
        (lambda found: found[:0], "has no row"),
    ],
)
def test_a_side_with_another_answer_does_not_count(change: Any, problem: str) -> None:
    """A row that is missing, doubled, changed or of nobody. Windows that are still open are not missing."""
    found = list(rows(8))
    assert WINDOWS.check(LOAD, START_MS, found) == len(found)
    with pytest.raises(SystemExit, match=problem):
        WINDOWS.check(LOAD, START_MS, change(found))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: found[1:], "lacks 1 of 600 trades and has 0 others"),
        (lambda found: [*found, found[3]], "lacks 0 of 600 trades and has 1 others"),
        (lambda found: [{**found[0], "ask": 0.5}, *found[1:]], "lacks 1 of 600 trades and has 1 others"),
    ],
)
def test_a_copy_has_each_trade_once(tmp_path: Path, change: Any, problem: str) -> None:
    """One that is missing, doubled or changed."""
    url = str(tmp_path / "copy")
    trades = [
        {
            "ticker": trade.ticker,
            "ts": datetime.fromtimestamp(trade.event_ms / 1000, UTC),
            "ask": trade.sixty_fourths / 64,
        }
        for trade in LOAD.trades(START_MS)
    ]
    write_deltalake(url, pa.Table.from_pylist(trades))
    found = COPY.rows_of_delta(url)
    assert COPY.check(LOAD, START_MS, found) == LOAD.rows
    with pytest.raises(SystemExit, match=problem):
        COPY.check(LOAD, START_MS, change(found))


def test_rows_are_read_from_both_kinds_of_tables(tmp_path: Path) -> None:
    """Delta's has windows, Iceberg's their ends. Of Iceberg's the files of the newest snapshot count: one that was
    deleted, being written or not yet committed does not.
    """
    at = datetime(2026, 1, 5, 12, tzinfo=UTC)
    instant = pa.timestamp("us", tz="UTC")
    window = pa.struct([("start", instant), ("end", instant)])
    url = str(tmp_path / "delta")
    schema = pa.schema([("window", window), ("ticker", pa.string())])
    row = {"window": {"start": at - timedelta(seconds=5), "end": at}, "ticker": "T001"}
    write_deltalake(url, pa.Table.from_pylist([row], schema=schema))
    end_ms = int(at.timestamp() * 1000)
    assert [(found["ticker"], found["end_ms"]) for found in WINDOWS.rows_of_delta(url)] == [("T001", end_ms)]

    table = tmp_path / "table" / "bench" / "stats"
    for folder in ("data", "metadata"):
        (table / folder).mkdir(parents=True)
    plain = pa.schema([("window_end", pa.timestamp("ms")), ("ticker", pa.string())])
    whole = pa.Table.from_pylist([{"window_end": at.replace(tzinfo=None), "ticker": "T002"}], schema=plain)
    for name in ("a", "deleted", "uncommitted"):
        pq.write_table(whole, table / "data" / f"{name}.parquet")
    (table / "data" / "unfinished.parquet").write_bytes(b"PAR1")
    manifest = table / "metadata" / "m.avro"
    files = {"a": 1, "deleted": 2}
    entries = [
        {"status": status, "data_file": {"file_path": f"file:{table}/data/{name}.parquet"}}
        for name, status in files.items()
    ]
    write_avro(manifest, ENTRY, entries)
    write_avro(table / "metadata" / "list.avro", MANIFEST, [{"manifest_path": f"file://{manifest}"}])
    summaries = [{"total-records": "1"}, {"total-records": "1", "flink.max-committed-checkpoint-id": "3"}]
    snapshots = [
        {"timestamp-ms": 10 * n, "summary": summary, "manifest-list": str(table / "metadata" / "list.avro")}
        for n, summary in enumerate(summaries)
    ]
    (table / "metadata" / "v9.metadata.json").write_text("{}")
    (table / "metadata" / "v10.metadata.json").write_text(json.dumps({"snapshots": snapshots}))
    (tmp_path / "checkpoints").write_text("2 0 5\n3 0 7\n3 1 9\n4 0 8\n")
    assert [(found["ticker"], found["end_ms"]) for found in rows_of_flink(tmp_path)] == [("T002", end_ms)]
    assert commits_of_flink(tmp_path) == [Commit(10, {0: 7, 1: 9})]
    write_avro(manifest, ENTRY, entries[:1] * 2)
    with pytest.raises(SystemExit, match="names 1 rows, and its files have 2"):
        rows_of_flink(tmp_path)


def write_avro(path: Path, schema: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows)


def avro_record(name: str, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in types.items()]}


#: What is read of a manifest, and of a list of manifests.
ENTRY = avro_record("entry", status="int", data_file=avro_record("file", file_path="string"))
MANIFEST = avro_record("manifest", manifest_path="string")


def runs(*p50: float) -> list[dict[str, float]]:
    return [{"p50": value, "p99": 2 * value, "rows_per_cpu_second": 1_000.0, "cpu": 1.0} for value in p50]


def record(rate: float, sides: dict[str, list[dict[str, float]]]) -> Record:
    return record_of(
        sides, rate=rate, warm_up=30.0, seconds=60.0, commit="abc1234", dirty=False, on="2026-01-05", cpus=2
    )


def test_ratios_are_taken_within_pairs() -> None:
    """Not of the medians: a machine that slows down slows both sides of a pair."""
    made = record(4_000.0, {"hindcast": runs(1.0, 2.0, 9.0), "tuned": runs(2.0, 2.0, 10.0)})
    assert made.ratios("tuned", "p50") == [0.5, 1.0, 0.9]
    assert made.ratios("hindcast", "p50") == []
    *_, ours, tuned = table(made)
    assert ours == "| hindcast | 3 | 2.00 | 4.00 | 1,000 | 1.00 |  |  |  |"
    assert tuned.endswith("| 0.90 (0.50 to 1.00) | 0.90 (0.50 to 1.00) | 1.00 (1.00 to 1.00) |")


def test_a_figure_that_some_run_lacks_is_left_out() -> None:
    """One of a burst, for instance, if a load had none."""
    with_burst = [{**run, "burst": 9_000.0, "burst_per_cpu_second": 5_000.0} for run in runs(1.0)]
    heading = table(record(1.0, {"hindcast": with_burst, "tuned": with_burst}))[0]
    assert "rows a second at once" in heading
    assert "at once" not in table(record(1.0, {"hindcast": with_burst, "tuned": runs(1.0)}))[0]


def test_a_side_alone_has_no_ratio() -> None:
    """And one pair has no spread."""
    assert record(1.0, {"tuned": runs(1.0)}).ratios("tuned", "p50") == []
    (*_, flink) = table(record(1.0, {"hindcast": runs(1.0), "flink": runs(4.0)}))
    assert flink.endswith("| 0.25 | 0.25 | 1.00 |")


def test_each_goal_is_set_beside_the_median_of_its_pairs() -> None:
    """One of a side or a load that was not measured is left out, and one that was missed is in bold."""
    ours = [{**run, "burst": 9_000.0} for run in runs(1.0, 2.0, 9.0)]
    tuned = [{**run, "burst": 3_000.0} for run in runs(4.0, 4.0, 10.0)]
    assert list(table_of_goals(record(4_000.0, {"hindcast": ours, "tuned": tuned})))[2:] == [
        "| rows a second at once, ours / tuned | at least 3 | 3.00 (3.00 to 3.00) | yes |",
        "| p50, ours / tuned | at most 0.4 | 0.50 (0.25 to 0.90) | **no** |",
    ]
    assert list(table_of_goals(record(10_000.0, {"hindcast": runs(0.5)})))[2:] == [
        "| p50 in seconds | at most 0.5 | 0.50 | yes |",
        "| p99 in seconds | at most 1.5 | 1.00 | yes |",
    ]


def test_the_page_has_the_figures_of_all_records_and_else_stays(tmp_path: Path) -> None:
    """Written twice it is the same. Windows come before copies, and the slowest load first."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for rate in (10_000.0, 4_000.0):
        made = record(rate, {"hindcast": runs(1.0)})
        made.write(tmp_path / "records" / f"{rate:.0f}.json")
    replace(made, job=COPY.name).write(tmp_path / "records" / "4000-copy.json")
    for _ in range(2):
        write_page(page, tmp_path / "records")
        text = page.read_text()
        assert text.startswith(f"before\n{BEGIN}\n")
        assert text.endswith(f"\n{END}\nafter\n")
        assert "old" not in text
        headings = [line for line in text.splitlines() if line.startswith("### ")]
        assert headings == [
            "### Windows, 4,000 records a second",
            "### Windows, 10,000 records a second",
            "### Copy, 4,000 records a second",
        ]
        assert text.count("xychart-beta") == 6
        assert text.count("    bar [1000.00]") == 3, "a chart knows no exponents"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        write_page(page, tmp_path / "records")
