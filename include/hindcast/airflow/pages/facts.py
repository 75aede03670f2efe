"""What the pages show, read from the control tables. Plain dictionaries; no HTML."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.airflow.fleet import slot_leases, slots_wanted
from hindcast.airflow.pages.formats import age_seconds, differing, fields, texts
from hindcast.clock import Clock
from hindcast.control.desired import Desired, desired_of
from hindcast.control.lease_table import read_leases
from hindcast.control.leases import NOT_HELD, Lease, StatusType
from hindcast.control.schema import ControlTable
from hindcast.control.standing import Standing, standings
from hindcast.control.tables import Condition, ControlTables
from hindcast.settings import Settings

SHOWN_EVENTS = 15
SHOWN_VERDICTS = 10
SHOWN_DIFFERENCES = 200
#: Events that are older are history, for `hindcast events`.
EVENTS_AGE = timedelta(days=7)

Row = dict[str, Any]


class Facts:
    """Reads for one request. Ages are for people: they compare this host's clock with the one that wrote the row."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._tables = ControlTables(settings)
        self._now = clock.now()

    def overview(self) -> Row:
        leases = read_leases(self._settings)
        verdicts = self._verdicts()
        shards = self._shards(leases)
        workers = self._workers(leases)
        known = standings(leases)
        pipelines = [self._pipeline(desired, known[name], shards, verdicts) for name, desired in sorted(desired_of(leases).items())]
        return {
            "now": self._now,
            "fleet": self._settings.fleet,
            "pipelines": pipelines,
            "shards": [shard for shard in shards if shard["current"]],
            "workers": workers,
            "verdicts": verdicts[:SHOWN_VERDICTS],
            "events": self._events(),
            "live": sum(worker["live"] for worker in workers),
            "wanted": len(slots_wanted(leases, self._settings)),
            "lag": sum(shard["lag"] or 0 for shard in shards if shard["current"]),
            "newest": verdicts[0] if verdicts else None,
        }

    def pipeline(self, name: str) -> Row | None:
        """One pipeline, or None where nothing was ever wanted of it and nothing is known about it."""
        leases = read_leases(self._settings)
        desired = desired_of(leases).get(name)
        verdicts = self._verdicts([("pipeline", "=", name)])
        if desired is None and not verdicts:
            return None
        shards = self._shards(lease for lease in leases if lease.stream_id == name)
        return {
            "now": self._now,
            "name": name,
            "pipeline": self._pipeline(desired, standings(leases)[name], shards, verdicts) if desired else None,
            "shards": shards,
            "verdicts": verdicts[:SHOWN_VERDICTS],
            "runs": self._runs([("pipeline", "=", name)])[:SHOWN_VERDICTS],
            "events": self._events([("pipeline", "=", name)]),
        }

    def verdict(self, run_id: str) -> Row | None:
        """One run with its verdict (None while it is not judged) and its differences, or None where there is no such run."""
        verdicts = self._verdicts([("run_id", "=", run_id)])
        runs = self._runs([("run_id", "=", run_id)])
        if not verdicts and not runs:
            return None
        differences = self._tables.rows(ControlTable.DIFFERENCES, [("run_id", "=", run_id)])
        differences.sort(key=lambda row: (row["cause"] != "unexplained", row["kind"] or "", row["keys"] or "", row["column"] or ""))
        verdict = verdicts[0] if verdicts else None
        run = runs[0] if runs else None
        return {
            "now": self._now,
            "run_id": run_id,
            "pipeline": (verdict or run or {})["pipeline"],
            "verdict": verdict,
            "run": run,
            "ratios": _ratios(verdict["ratios"]) if verdict else [],
            "differences": [_difference(row) for row in differences[:SHOWN_DIFFERENCES]],
            "more_differences": max(len(differences) - SHOWN_DIFFERENCES, 0),
        }

    def documented(self) -> list[Row]:
        """The verdicts that say where their Data Docs are, the newest first."""
        return [row for row in self._verdicts() if row["data_docs"]]

    def data_docs(self, run_id: str) -> str:
        """Where the run's Data Docs are, as its verdict says; empty where it has none."""
        verdicts = self._verdicts([("run_id", "=", run_id)])
        return str(verdicts[0]["data_docs"] or "") if verdicts else ""

    def _pipeline(self, desired: Desired, standing: Standing, shards: Iterable[Row], verdicts: Iterable[Row]) -> Row:
        """The active version, with the newest of these verdicts that is on it."""
        ours = (row for row in verdicts if (row["pipeline"], row["version"]) == (desired.pipeline, desired.version))
        own = [shard for shard in shards if shard["pipeline"] == desired.pipeline and shard["current"]]
        watermarks = [shard["watermark_ms"] for shard in own]
        least = min(watermarks, default=0)
        return {
            "name": desired.pipeline,
            "state": desired.state.value,
            "version": desired.version,
            "beside": f"{standing.beside.version} {standing.beside.state.value.replace('_', ' ')}" if standing.beside else "",
            "shards": desired.shards,
            "workers": desired.workers,
            "owned": sum(bool(shard["owner"]) for shard in own),
            "lag": sum(shard["lag"] or 0 for shard in own) if own else None,
            "over_limit": any((shard["lag"] or 0) > self._settings.lag_limit_records for shard in own),
            "watermark_ms": least,
            "watermark_age": self._watermark_age(least),
            "verdict": next(ours, None),
        }

    def _shards(self, leases: Iterable[Lease]) -> list[Row]:
        found = list(leases)
        wanted = desired_of(found)
        shards = []
        for lease in sorted((lease for lease in found if lease.status_type is StatusType.SHARD), key=lambda lease: lease.key):
            watermark_ms = int(lease.checkpoint.get("watermark_ms") or 0)
            desired = wanted.get(lease.stream_id)
            shards.append(
                {
                    "pipeline": lease.stream_id,
                    "shard": lease.status_value,
                    "state": str(lease.state),
                    "owner": lease.lease_owner,
                    "stealer": lease.lease_stealer,
                    "epoch": lease.epoch,
                    "batch": lease.checkpoint.get("batch"),
                    "partitions": lease.detail.get("partitions") or [],
                    "lag": lease.detail.get("lag_records"),
                    "watermark_ms": watermark_ms,
                    "watermark_age": self._watermark_age(watermark_ms),
                    "renewed": age_seconds(lease.updated_at, self._now),
                    "quiet": self._quiet(lease),
                    "current": desired is not None
                    and lease.state not in NOT_HELD
                    and lease.status_value.startswith(f"v{desired.version}."),
                }
            )
        return shards

    def _workers(self, leases: Iterable[Lease]) -> list[Row]:
        found = list(leases)
        slots = slot_leases(found, self._settings)
        rows = []
        for slot in sorted({*slots, *slots_wanted(found, self._settings)}, key=lambda slot: (len(slot), slot)):
            lease = slots.get(slot)
            holds = [
                f"{other.stream_id}/{other.status_value}"
                for other in found
                if lease and lease.lease_owner and _is_shard_of(other, lease.lease_owner)
            ]
            taken = lease is not None and not lease.free
            rows.append(
                {
                    "slot": slot,
                    "worker": lease.lease_owner if lease else "",
                    "host": lease.detail.get("host", "") if lease and taken else "",
                    "pid": lease.detail.get("pid", "") if lease and taken else "",
                    "epoch": lease.epoch if lease else 0,
                    "holds": sorted(holds),
                    "renewed": age_seconds(lease.updated_at, self._now) if lease and taken else None,
                    "live": lease is not None and taken and not self._quiet(lease),
                }
            )
        return rows

    def _quiet(self, lease: Lease) -> bool:
        age = age_seconds(lease.updated_at, self._now)
        return not lease.free and age is not None and age > self._settings.lease_seconds

    def _watermark_age(self, watermark_ms: int) -> float | None:
        return age_seconds(datetime.fromtimestamp(watermark_ms / 1000, UTC), self._now) if watermark_ms else None

    def _verdicts(self, where: Iterable[Condition] = ()) -> list[Row]:
        """The newest first; of a run that was judged again, the last judgement."""
        newest: dict[str, Row] = {}
        for row in sorted(self._tables.rows(ControlTable.VERDICTS, where), key=lambda row: row["judged_at"]):
            newest[row["run_id"]] = {**row, "failures": texts(row["failed"])}
        return sorted(newest.values(), key=lambda row: row["judged_at"], reverse=True)

    def _runs(self, where: Iterable[Condition]) -> list[Row]:
        newest: dict[str, Row] = {}
        for row in sorted(self._tables.rows(ControlTable.RUNS, where), key=lambda row: row["finished_at"] or row["started_at"]):
            newest[row["run_id"]] = row
        return sorted(newest.values(), key=lambda row: row["started_at"], reverse=True)

    def _events(self, where: Iterable[Condition] = ()) -> list[Row]:
        rows = self._tables.rows(ControlTable.EVENTS, [("at", ">=", self._now - EVENTS_AGE), *where])
        newest = sorted(rows, key=lambda row: row["at"], reverse=True)[:SHOWN_EVENTS]
        return [{**row, "age": age_seconds(row["at"], self._now)} for row in newest]


def _is_shard_of(lease: Lease, owner: str) -> bool:
    return lease.status_type is StatusType.SHARD and lease.lease_owner == owner


def _difference(row: Row) -> Row:
    columns, stream, hindcast = differing(row["stream_value"], row["hindcast_value"])
    return {**row, "columns": [row["column"]] if row["column"] else columns, "stream": stream, "hindcast": hindcast}


def _ratios(text: str | None) -> list[Row]:
    """The online-to-hindsight ratios of each numeric column, as rows of column and figures."""
    return [{"column": column, "figures": figures} for column, figures in sorted(fields(text).items()) if isinstance(figures, dict)]
