"""What Airflow learns of Hindcast: the control room's pages, the buttons on tasks, and when Spark drivers start.

Every Airflow process imports this, tasks included; so the web application is made on the first request, in the API server alone.
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


@cache
def _application() -> FastAPI:
    from hindcast.airflow.pages.app import create_app

    return create_app()


class ControlRoom:
    """The pages as an ASGI application."""

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        app = await asyncio.to_thread(_application)  # it is imported in seconds the first time; other requests go on
        await app(scope, receive, send)


class HindcastPlugin(AirflowPlugin):
    """Registered by plugins/hindcast_plugin.py."""

    name = "hindcast"
    # ruff: noqa: RUF012 - Airflow reads these lists from the class
    fastapi_apps: list[dict[str, Any]] = [{"app": ControlRoom(), "url_prefix": PREFIX, "name": "Hindcast"}]
    # Relative: Airflow's page says where it is served.
    external_views: list[dict[str, Any]] = [
        {"name": "Hindcast", "href": f"{PREFIX.lstrip('/')}/", "destination": "nav", "url_route": "hindcast", "nav_top_level": True}
    ]
    operator_extra_links: list[Any] = [ControlRoomLink(), VerdictLink(), DataDocsLink()]
    timetables: list[Any] = [SpreadCronTimetable]
    priority_weight_strategies: list[Any] = [AskedFirst]
