"""What the pages show, read from the control tables. Plain dictionaries; no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.airflow.pages.formats import age_seconds, differing, fields, texts
from hindcast.airflow.supervision.conditions import slot_leases, slots_wanted
from hindcast.clock import Clock
from hindcast.delta.arrow_dataset import Condition
from hindcast.installation import Installation
from hindcast.leases.lease import NOT_HELD, Lease, StatusType
from hindcast.shards.active_version import Rollout, rollouts
from hindcast.shards.desired_state import desired_of
from hindcast.shards.pipeline_row import PipelineRow
from hindcast.shards.shard_row import ShardCheckpoint, ShardDetail
from hindcast.shards.slot_row import SlotHolder
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import VerdictTrends

SHOWN_EVENTS = 15
SHOWN_VERDICTS = 10
#: A run has a row for its beginning and one for its end, and more if it is tried or judged again.
_ROWS_OF_A_RUN = 5
SHOWN_DIFFERENCES = 200
SHOWN_DOCUMENTED = 200
#: Versions of which the trend is shown: the newest.
SHOWN_TRENDS = 3
#: Events that are older are history, for `hindcast events`.
EVENTS_AGE = timedelta(days=7)

Row = dict[str, Any]


class Views:
    """Reads for one request.

    Ages are for people: they compare this host's clock with that of the host that wrote the row.
    """

    def __init__(self, installation: Installation, clock: Clock) -> None:
        self._settings = installation.settings
        self._tables = installation.tables
        self._lease_table = installation.lease_table
        self._now = clock.now()

    def overview(self) -> Row:
        leases = self._lease_table.leases_if_any()
        verdicts = self._verdicts()
        desired_by_name = desired_of(leases)
        of_active = self._of_active_versions(desired_by_name.values())
        shards = self._shards(leases)
        current = [shard for shard in shards if shard["current"]]
        workers = self._workers(leases)
        known = rollouts(leases)
        pipelines = []
        for name, desired in sorted(desired_by_name.items()):
            pipelines.append(self._pipeline(desired, known[name], shards, of_active.get(name)))
        return {
            "now": self._now,
            "fleet": self._settings.fleet,
            "pipelines": pipelines,
            "shards": current,
            "workers": workers,
            "verdicts": verdicts,
            "events": self._events(),
            "live": sum(worker["live"] for worker in workers),
            "wanted": len(slots_wanted(leases, self._settings)),
            "lag": _lag(current),
            "newest": _first(verdicts),
        }

    def pipeline(self, name: str) -> Row | None:
        """One pipeline; None if it has neither a desired state nor a verdict."""
        leases = self._lease_table.leases_if_any()
        desired = desired_of(leases).get(name)
        of_pipeline = [("pipeline", "=", name)]
        verdicts = self._verdicts(of_pipeline)
        if desired is None and not verdicts:
            return None
        shards = self._shards(lease for lease in leases if lease.stream_id == name)
        pipeline = None
        if desired is not None:
            of_active = self._of_active_versions([desired])
            pipeline = self._pipeline(desired, rollouts(leases)[name], shards, of_active.get(name))
        return {
            "now": self._now,
            "name": name,
            "pipeline": pipeline,
            "shards": shards,
            "verdicts": verdicts,
            "trends": self._trends(name),
            "runs": self._runs(of_pipeline),
            "events": self._events(of_pipeline),
        }

    def verdict(self, run_id: str) -> Row | None:
        """One run, with its verdict and its differences; None if there is no such run.

        The verdict is None until the run is judged.
        """
        of_run = [("run_id", "=", run_id)]
        verdict = self._verdict_of(run_id)
        run = _first(self._runs(of_run))
        known = verdict or run
        if known is None:
            return None
        ratios: list[Row] = []
        bounds: list[Row] = []
        if verdict is not None:
            ratios = _ratios(verdict["ratios"])
            bounds = _bounds(verdict["bounds"])
        differences = []
        if verdict is not None:
            # Those of this judgement: the run may have been judged before, or a judge may have been killed.
            found = self._tables.rows(ControlTable.DIFFERENCES, of_run)
            differences = [row for row in found if row["found_at"] == verdict["judged_at"]]
        differences.sort(key=_unexplained_first)
        return {
            "now": self._now,
            "run_id": run_id,
            "pipeline": known["pipeline"],
            "verdict": verdict,
            "run": run,
            "ratios": ratios,
            "bounds": bounds,
            "differences": [_difference(row) for row in differences[:SHOWN_DIFFERENCES]],
            "more_differences": max(len(differences) - SHOWN_DIFFERENCES, 0),
        }

    def documented(self) -> list[Row]:
        """The newest verdicts that say where their Data Docs are, the newest first."""
        newest = self._tables.newest(ControlTable.VERDICTS, "judged_at", SHOWN_DOCUMENTED)
        return [row for row in _judged_last(newest.to_pylist()) if row["data_docs"]]

    def data_docs(self, run_id: str) -> str:
        """Where the run's Data Docs are, as its verdict says; empty if it has none."""
        verdict = self._verdict_of(run_id)
        if verdict is None:
            return ""
        return str(verdict["data_docs"] or "")

    def _pipeline(
        self, desired: PipelineRow, rollout: Rollout, shards: Iterable[Row], newest: Row | None
    ) -> Row:
        """The active version.

        :param newest: the newest of its verdicts
        """
        own = [shard for shard in shards if shard["pipeline"] == desired.pipeline and shard["current"]]
        lag = None
        if own:
            lag = _lag(own)
        limit = self._settings.lag_limit_records
        watermark_ms = min((shard["watermark_ms"] for shard in own), default=0)
        beside = ""
        if rollout.beside is not None:
            state = rollout.beside.state.value.replace("_", " ")
            beside = f"{rollout.beside.version} {state}"
        return {
            "name": desired.pipeline,
            "state": desired.state.value,
            "version": desired.version,
            "beside": beside,
            "shards": desired.shards,
            "workers": desired.workers,
            "owned": sum(bool(shard["owner"]) for shard in own),
            "lag": lag,
            "over_limit": any((shard["lag"] or 0) > limit for shard in own),
            "watermark_ms": watermark_ms,
            "watermark_age": self._watermark_age(watermark_ms),
            "verdict": newest,
        }

    def _shards(self, leases: Iterable[Lease]) -> list[Row]:
        found = list(leases)
        desired_by_name = desired_of(found)
        shards = [lease for lease in found if lease.status_type is StatusType.SHARD]
        shards.sort(key=lambda lease: lease.key)
        return [self._shard(lease, desired_by_name.get(lease.stream_id)) for lease in shards]

    def _shard(self, lease: Lease, desired: PipelineRow | None) -> Row:
        """One shard; it is *current* if the active version consumes it."""
        checkpoint = ShardCheckpoint.of(lease)
        detail = ShardDetail.of(lease)
        watermark_ms = checkpoint.watermark_ms
        current = False
        if desired is not None and lease.state not in NOT_HELD:
            current = lease.status_value.startswith(f"v{desired.version}.")
        return {
            "pipeline": lease.stream_id,
            "shard": lease.status_value,
            "state": str(lease.state),
            "owner": lease.lease_owner,
            "stealer": lease.lease_stealer,
            "epoch": lease.epoch,
            "batch": checkpoint.batch or None,
            "partitions": detail.partitions,
            "lag": detail.lag_records,
            "watermark_ms": watermark_ms,
            "watermark_age": self._watermark_age(watermark_ms),
            "renewed": age_seconds(lease.updated_at, self._now),
            "quiet": self._quiet(lease),
            "current": current,
        }

    def _workers(self, leases: Iterable[Lease]) -> list[Row]:
        found = list(leases)
        slots = slot_leases(found, self._settings)
        numbers = slots.keys() | set(slots_wanted(found, self._settings))
        rows = []
        for slot in sorted(numbers, key=lambda number: (len(number), number)):
            row: Row = {
                "slot": slot,
                "worker": "",
                "host": "",
                "pid": "",
                "epoch": 0,
                "holds": [],
                "renewed": None,
                "live": False,
            }
            if slot in slots:
                row.update(self._worker(slots[slot], found))
            rows.append(row)
        return rows

    def _worker(self, lease: Lease, leases: Iterable[Lease]) -> Row:
        """What the slot's row says of its owner."""
        row: Row = {
            "worker": lease.lease_owner,
            "epoch": lease.epoch,
            "holds": _shards_of(lease.lease_owner, leases),
        }
        if not lease.free:
            holder = SlotHolder.of(lease)
            row["host"] = holder.host
            row["pid"] = holder.pid or ""
            row["renewed"] = age_seconds(lease.updated_at, self._now)
            row["live"] = not self._quiet(lease)
        return row

    def _quiet(self, lease: Lease) -> bool:
        """Whether the owner has not renewed for a whole lease."""
        if lease.free:
            return False
        age = age_seconds(lease.updated_at, self._now)
        return age is not None and age > self._settings.lease_seconds

    def _watermark_age(self, watermark_ms: int) -> float | None:
        if not watermark_ms:
            return None
        return age_seconds(datetime.fromtimestamp(watermark_ms / 1000, UTC), self._now)

    def _verdicts(self, where: Iterable[Condition] = ()) -> list[Row]:
        """The newest ones to show, the newest first; of a run that was judged again, the last judgement."""
        many = SHOWN_VERDICTS * _ROWS_OF_A_RUN
        newest = self._tables.newest(ControlTable.VERDICTS, "judged_at", many, where)
        return _judged_last(newest.to_pylist())[:SHOWN_VERDICTS]

    def _verdict_of(self, run_id: str) -> Row | None:
        """The last judgement of a run; None if it was not judged."""
        return _first(_judged_last(self._tables.rows(ControlTable.VERDICTS, [("run_id", "=", run_id)])))

    def _of_active_versions(self, pipelines: Iterable[PipelineRow]) -> dict[str, Row]:
        """By pipeline, the newest verdict of its active version.

        There are very many verdicts after months, so that the instants say which of them are read whole.
        """
        active = {(row.pipeline, row.version) for row in pipelines}
        if not active:
            return {}
        table = self._tables.newest_version(ControlTable.VERDICTS)
        names = sorted({name for name, _ in active})
        judged = table.read([("pipeline", "in", names)], ["pipeline", "version", "judged_at"])
        newest = judged.group_by(["pipeline", "version"]).aggregate([("judged_at", "max")])
        wanted: list[list[Condition]] = []
        for row in newest.to_pylist():
            name, version, at = row["pipeline"], row["version"], row["judged_at_max"]
            if (name, version) in active and at is not None:
                wanted.append([("pipeline", "=", name), ("version", "=", version), ("judged_at", "=", at)])
        if not wanted:
            return {}
        return {row["pipeline"]: row for row in _judged_last(table.read(any_of=wanted).to_pylist())}

    def _trends(self, name: str) -> list[Row]:
        """What the verdicts of the newest versions come to, the newest version first."""
        newest = VerdictTrends(self._tables).read(name)[-SHOWN_TRENDS:]
        rows = []
        for trend in reversed(newest):
            row = {"version": trend.version, "verdicts": trend.verdicts, "measures": trend.measures()}
            rows.append(row)
        return rows

    def _runs(self, where: Iterable[Condition]) -> list[Row]:
        """The newest ones to show, the newest first; of a run with several attempts, the last row."""
        many = SHOWN_VERDICTS * _ROWS_OF_A_RUN
        rows = self._tables.newest(ControlTable.RUNS, "started_at", many, where).to_pylist()
        rows.sort(key=lambda row: row["finished_at"] or row["started_at"])
        newest: dict[str, Row] = {}
        for row in rows:
            newest[row["run_id"]] = row
        found = sorted(newest.values(), key=lambda row: row["started_at"], reverse=True)
        return found[:SHOWN_VERDICTS]

    def _events(self, where: Iterable[Condition] = ()) -> list[Row]:
        recent = ("at", ">=", self._now - EVENTS_AGE)
        rows = self._tables.rows(ControlTable.EVENTS, [recent, *where])
        rows.sort(key=lambda row: row["at"], reverse=True)
        return [{**row, "age": age_seconds(row["at"], self._now)} for row in rows[:SHOWN_EVENTS]]


def _judged_last(rows: Iterable[Row]) -> list[Row]:
    """The verdicts, the newest first; of a run that was judged again, the last judgement."""
    newest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row["judged_at"]):
        newest[row["run_id"]] = {**row, "failures": texts(row["failed"])}
    return sorted(newest.values(), key=lambda row: row["judged_at"], reverse=True)


def _first(rows: Sequence[Row]) -> Row | None:
    if not rows:
        return None
    return rows[0]


def _lag(shards: Iterable[Row]) -> int:
    """Records that these shards are behind; a shard whose lag is not known counts as 0."""
    return sum(shard["lag"] or 0 for shard in shards)


def _shards_of(owner: str, leases: Iterable[Lease]) -> list[str]:
    """The shards that this worker holds, as ``pipeline/shard``; a free slot has no worker."""
    if not owner:
        return []
    shards = [lease for lease in leases if lease.status_type is StatusType.SHARD]
    held = [f"{lease.stream_id}/{lease.status_value}" for lease in shards if lease.lease_owner == owner]
    return sorted(held)


def _unexplained_first(row: Row) -> tuple[int, str, str, str]:
    """After them what is beyond a bound."""
    place = {"unexplained": 0, "bound": 1}.get(row["cause"], 2)
    return place, row["kind"] or "", row["keys"] or "", row["column"] or ""


def _difference(row: Row) -> Row:
    columns, stream, hindcast = differing(row["stream_value"], row["hindcast_value"])
    if row["column"]:
        columns = [row["column"]]
    return {**row, "columns": columns, "stream": stream, "hindcast": hindcast}


def _bounds(text: str | None) -> list[Row]:
    """What was measured against each bound of a column: rows of kind, column and figures."""
    rows = []
    for kind, columns in sorted(fields(text).items()):
        for column, found in sorted(columns.items()):
            rows.append({"kind": kind, "column": column, **found})
    return rows


def _ratios(text: str | None) -> list[Row]:
    """The online-to-hindsight ratios of each numeric column, as rows of column and figures."""
    rows = []
    for column, figures in sorted(fields(text).items()):
        if isinstance(figures, dict):
            rows.append({"column": column, "figures": figures})
    return rows
