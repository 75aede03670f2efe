"""What Hindcast adds to Airflow: the control room's pages, buttons on tasks, a timetable and task weights.

Every Airflow process imports this module, each task's too. So only the API server makes the web application,
on the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from hindcast.airflow.links import PREFIX, ControlRoomLink, DataDocsLink, VerdictLink
from hindcast.airflow.scheduling import AskedFirst, SpreadCronTimetable

if TYPE_CHECKING:
    from fastapi import FastAPI

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@cache
def _application() -> FastAPI:
    from hindcast.airflow.pages.web import create_app

    return create_app()


class ControlRoom:
    """The pages as an ASGI application."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        # The first import takes seconds: in a thread it does not block other requests.
        app = await asyncio.to_thread(_application)
        await app(scope, receive, send)


class HindcastPlugin(AirflowPlugin):
    """Registered by plugins/hindcast_plugin.py or by the package's entry point: Airflow takes the first."""

    name = "hindcast"
    # ruff: noqa: RUF012 - Airflow reads these lists from the class
    fastapi_apps: list[dict[str, Any]] = [{"app": ControlRoom(), "url_prefix": PREFIX, "name": "Hindcast"}]
    external_views: list[dict[str, Any]] = [
        {
            "name": "Hindcast",
            "href": f"{PREFIX.lstrip('/')}/",  # relative: Airflow may be served below a prefix
            "destination": "nav",
            "url_route": "hindcast",
            "nav_top_level": True,
        }
    ]
    operator_extra_links: list[Any] = [ControlRoomLink(), VerdictLink(), DataDocsLink()]
    timetables: list[Any] = [SpreadCronTimetable]
    priority_weight_strategies: list[Any] = [AskedFirst]
