"""When Spark drivers start: spread over the hour, and first what a person asked for.

Airflow finds both classes through the plugin.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.task.priority_strategy import PriorityWeightStrategy
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.utils.types import DagRunType

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.timetables.base import Timetable

#: If two tasks wait for a slot, the one with the greater weight starts first. A verdict precedes the next
#: replay, because it completes a hindcast that exists already.
WEIGHTS = {
    DagRunType.MANUAL: 1000,
    DagRunType.OPERATOR_TRIGGERED: 1000,
    DagRunType.ASSET_MATERIALIZATION: 1000,
    DagRunType.ASSET_TRIGGERED: 100,
    DagRunType.SCHEDULED: 10,
    DagRunType.BACKFILL_JOB: 1,
}
#: Bytes of a name's hash that make its part of the spread: 48 bits are more than a float needs.
_HASH_BYTES = 6


class AskedFirst(PriorityWeightStrategy):
    """Runs that a person triggered, then verdicts, then the schedule, then backfills.

    The run's id says which kind of run it is.
    """

    def get_weight(self, ti: TaskInstance) -> int:
        run_type = DagRunType.from_run_id(ti.run_id)
        return WEIGHTS[run_type]


class SpreadCronTimetable(CronDataIntervalTimetable):
    """The data intervals of a cron expression in UTC. Each run starts some time after its interval has ended.

    The interval stays what the expression says, e.g. a whole hour. Each name has a delay of its own, the same
    for every run, so that the replays of many pipelines do not start together.

    :param name: decides which part of ``spread_seconds`` the delay is
    :param spread_seconds: the greatest delay; it never exceeds the interval's own length
    """

    def __init__(self, cron: str, *, name: str, spread_seconds: float) -> None:
        super().__init__(cron, "UTC")
        self._name = name
        self._spread_seconds = spread_seconds

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "name": self._name, "spread_seconds": self._spread_seconds}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        return cls(data["expression"], name=data["name"], spread_seconds=data["spread_seconds"])

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        info = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        if info is None or info.data_interval is None:
            return info
        interval = self._due(info.data_interval, last_automated_data_interval, restriction)
        return DagRunInfo(run_after=interval.end + self._delay_of(interval), data_interval=interval)

    def _due(
        self, newest: DataInterval, last: DataInterval | None, restriction: TimeRestriction
    ) -> DataInterval:
        """The interval before the newest one, if the newest one's run is not due yet and that one has had no
        run.

        Without catch-up Airflow passes over all but the newest interval that has ended. It knows of no delay:
        a run that was not created before the next interval ended would be lost.
        """
        if last is None or newest.start <= last.end:
            return newest
        if newest.end + self._delay_of(newest) <= datetime.now(UTC):
            return newest
        start = self._get_prev(newest.start)
        if restriction.earliest is not None and start < restriction.earliest:
            return newest
        return DataInterval(start=start, end=newest.start)

    def _delay_of(self, interval: DataInterval) -> timedelta:
        return self.delay(interval.end - interval.start)

    def delay(self, length: timedelta) -> timedelta:
        """How long after the end of an interval of this length its run starts; whole seconds."""
        longest = min(self._spread_seconds, length.total_seconds())
        return timedelta(seconds=int(longest * part(self._name)))


def part(name: str) -> float:
    """A number in [0, 1), always the same for the same name."""
    digest = hashlib.sha256(name.encode()).digest()
    number = int.from_bytes(digest[:_HASH_BYTES], "big")
    return number / 2.0 ** (8 * _HASH_BYTES)


#: As a task's ``weight_rule``: the class by its name, which a mapped task keeps as well.
ASKED_FIRST = f"{AskedFirst.__module__}.{AskedFirst.__qualname__}"
