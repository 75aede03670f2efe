"""A replay and its verdict as a part of a DAG of one's own."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TaskGroup, XComArg

from hindcast.airflow.driver_tasks import REPLAYS_AT_ONCE, driver_arguments
from hindcast.airflow.links import RUN_ID
from hindcast.airflow.operators import HindcastReplayOperator, RangeChoice, ValidateOperator


class HindcastTaskGroup(TaskGroup):
    """Replay a range of a pipeline's topic, then judge the pipeline's stream by that hindcast.

    What comes after the group runs only if the verdict passes. If there was nothing to replay, both tasks are
    skipped. The hindcast raises no asset event, so the DAG ``validate`` does not judge it again.

    :param choice: of the range, which it and the other fields say as those of
        :class:`hindcast.airflow.operators.HindcastReplayOperator` do. By default it is the data interval of
        the run, so the DAG needs a timetable that has them
    """

    def __init__(
        self,
        group_id: str,
        *,
        pipeline: str,
        choice: str = RangeChoice.INTERVAL.value,
        from_offsets: str = "",
        to_offsets: str = "",
        from_time: str = "",
        to_time: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id=group_id, **kwargs)
        of_each: dict[str, Any] = {
            "task_group": self,
            "max_active_tis_per_dag": REPLAYS_AT_ONCE,
            **driver_arguments(),
        }
        replayed = HindcastReplayOperator(
            task_id="hindcast",
            pipeline=pipeline,
            announced=False,
            choice=choice,
            from_offsets=from_offsets,
            to_offsets=to_offsets,
            from_time=from_time,
            to_time=to_time,
            **of_each,
        )
        ValidateOperator(task_id="judge", pipeline=pipeline, run_id=XComArg(replayed, RUN_ID), **of_each)
