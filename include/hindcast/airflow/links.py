"""Buttons on a task: to Great Expectations' Data Docs of its verdict, and to the control room's page about it."""

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
#: XComs that the operators push for the links, also when the task then fails.
RUN_ID = "run_id"


def page_url(settings: Settings, *parts: str) -> str:
    """The address of one of the plugin's pages. Without ``airflow_url`` it is relative to wherever Airflow is served."""
    return "/".join([settings.airflow_url.rstrip("/") + PREFIX, *(quote(part, safe="") for part in parts)])


def _run_of(ti_key: Any) -> str:
    from airflow.sdk.execution_time.xcom import XCom

    value = XCom.get_value(ti_key=ti_key, key=RUN_ID)
    return value if isinstance(value, str) else ""


class ControlRoomLink(BaseOperatorLink):
    """The overview of the fleet."""

    @property
    def name(self) -> str:
        return "Hindcast"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        return page_url(Settings(), "")


class VerdictLink(BaseOperatorLink):
    """The run's verdict with its differences."""

    @property
    def name(self) -> str:
        return "Verdict"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        run_id = _run_of(ti_key)
        return page_url(Settings(), "verdicts", run_id) if run_id else ""


class DataDocsLink(BaseOperatorLink):
    """The run's page in Data Docs; the plugin looks its path up, as the task that ran first does not know it."""

    @property
    def name(self) -> str:
        return "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        run_id = _run_of(ti_key)
        return page_url(Settings(), "verdicts", run_id, "data-docs") if run_id else ""
