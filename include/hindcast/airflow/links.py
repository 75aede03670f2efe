"""Buttons on a task: to the control room, to the page of its verdict, and to the verdict's Data Docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from hindcast.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

#: Where the plugin's pages are mounted.
PREFIX = "/hindcast"
#: The XCom that names the run. Operators push it before they do anything that can fail.
RUN_ID = "run_id"


def page_url(settings: Settings, *parts: str) -> str:
    """The address of one of the plugin's pages.

    Without ``airflow_url`` it is relative to Airflow's own root.
    """
    address = settings.airflow_url.rstrip("/") + PREFIX
    for part in parts:
        address += "/" + quote(part, safe="")
    return address


def _verdict_url(ti_key: TaskInstanceKey, *parts: str) -> str:
    """The address of the page of the task's run; empty if the task has no run."""
    from airflow.sdk.execution_time.xcom import XCom

    run_id: Any = XCom.get_value(ti_key=ti_key, key=RUN_ID)
    if not isinstance(run_id, str) or not run_id:
        return ""
    return page_url(Settings(), "verdicts", run_id, *parts)


class ControlRoomLink(BaseOperatorLink):
    """The overview of the fleet."""

    @property
    def name(self) -> str:
        return "Hindcast"

    def get_link(
        self,
        operator: BaseOperator,  # noqa: ARG002 - Airflow's signature
        *,
        ti_key: TaskInstanceKey,  # noqa: ARG002 - Airflow's signature
    ) -> str:
        return page_url(Settings(), "")


class VerdictLink(BaseOperatorLink):
    """The run's verdict with its differences."""

    @property
    def name(self) -> str:
        return "Verdict"

    def get_link(
        self,
        operator: BaseOperator,  # noqa: ARG002 - Airflow's signature
        *,
        ti_key: TaskInstanceKey,
    ) -> str:
        return _verdict_url(ti_key)


class DataDocsLink(BaseOperatorLink):
    """The run's page in Data Docs. The plugin finds its path, which only a judging task knows."""

    @property
    def name(self) -> str:
        return "Data Docs"

    def get_link(
        self,
        operator: BaseOperator,  # noqa: ARG002 - Airflow's signature
        *,
        ti_key: TaskInstanceKey,
    ) -> str:
        return _verdict_url(ti_key, "data-docs")
