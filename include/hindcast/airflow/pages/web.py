"""The control room's routes.

Airflow does not authenticate a plugin's routes, so each route here asks Airflow's own guard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.models.pool import Pool
from fastapi import Depends, FastAPI, HTTPException, Request, status
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException as StarletteHTTPException

from hindcast.airflow.pages import formats, quality_reports
from hindcast.airflow.pages.views import Row, Views
from hindcast.clock import SystemClock
from hindcast.errors import BadInputError, HindcastError
from hindcast.installation import Installation
from hindcast.pipeline import check_name
from hindcast.settings import Settings

#: The pages hold no script and load nothing. Airflow shows them in a frame of its own origin.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
DOCUMENT_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": quality_reports.CONTENT_SECURITY_POLICY + "; frame-ancestors 'self'",
}
_FILTERS = (
    "count",
    "number",
    "share",
    "figure",
    "size",
    "seconds",
    "instant",
    "event_time",
    "fields",
    "keys",
    "trend_lines",
)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in _FILTERS:
        environment.filters[name] = getattr(formats, name)
    return environment


def _page(template: str, root: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Render a page.

    :param root: the way from this page to the overview. All links are relative: Airflow may be served below
        a prefix
    """
    html = _templates().get_template(template).render(root=root, **values)
    return HTMLResponse(html, status_code=status_code, headers=PAGE_HEADERS)


def pool_exists(name: str) -> bool:
    """Whether Airflow has this pool.

    A task of a missing pool never starts, and only Airflow's log says so.
    """
    try:
        return Pool.get_pool(name) is not None
    except SQLAlchemyError:  # Airflow itself reports a database that is away
        return True


def create_app(settings: Callable[[], Settings] = Settings) -> FastAPI:
    """The application to be mounted below ``/hindcast``."""
    # No documentation routes: FastAPI adds them without the guard.
    app = FastAPI(
        title="Hindcast",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )

    def facts() -> Views:
        return Views(Installation(settings()), SystemClock())

    def docs_path(recorded: str) -> str:
        """The address of a run's Data Docs below ``data-docs/``; empty if there are none."""
        if not recorded:
            return ""
        return quality_reports.relative_url(settings().home / "data_docs", recorded)

    @app.get("/")
    def overview() -> Response:
        pool = settings().spark_pool
        missing_pool = ""
        if not pool_exists(pool):
            missing_pool = pool
        return _page("overview.html", "./", missing_pool=missing_pool, **facts().overview())

    @app.get("/pipelines/{name}")
    def pipeline(name: str) -> Response:
        found = _found(facts().pipeline(check_name("pipeline", name)), "pipeline", name)
        return _page("pipeline.html", "../", **found)

    @app.get("/verdicts/{run_id}")
    def verdict(run_id: str) -> Response:
        found = _found(facts().verdict(check_name("run", run_id)), "run", run_id)
        verdict_row = found["verdict"] or {}
        docs = docs_path(verdict_row.get("data_docs") or "")
        return _page("verdict.html", "../", docs=docs, **found)

    @app.get("/verdicts/{run_id}/data-docs")
    def data_docs_of(run_id: str) -> Response:
        recorded = facts().data_docs(check_name("run", run_id))
        path = docs_path(recorded)
        if not path:
            raise HTTPException(
                status.HTTP_404_NOT_FOUND, f"The run {run_id} has no Data Docs: it was not judged yet."
            )
        return RedirectResponse(f"../../data-docs/{path}", headers=PAGE_HEADERS)

    @app.get("/data-docs/{path:path}")
    def document(path: str) -> Response:
        folder = settings().home / "data_docs"
        if path in {"", "index.html"}:  # only a script would fill Great Expectations' own index
            linked = []
            for row in facts().documented():
                url = docs_path(row["data_docs"])
                if url:
                    linked.append((row, url))
            return _page("documents.html", "../", documents=linked)
        file = quality_reports.locate(folder, path)
        if file is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such page in Data Docs.")
        if file.suffix.lower() == ".html":
            root = "../" * (path.count("/") + 1)
            top = _templates().get_template("document_top.html").render(root=root)
            html = quality_reports.dressed(file.read_text(encoding="utf-8"), top)
            return HTMLResponse(html, headers=DOCUMENT_HEADERS)
        media_type = quality_reports.CONTENT_TYPES[file.suffix.lower()]
        return FileResponse(file, media_type=media_type, headers=DOCUMENT_HEADERS)

    app.add_exception_handler(StarletteHTTPException, _on_http_error)
    app.add_exception_handler(HindcastError, _on_hindcast_error)
    return app


def _found(values: Row | None, what: str, name: str) -> Row:
    if values is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"There is no {what} named {name}.")
    return values


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=PAGE_HEADERS)
    return _problem(request, error.status_code, str(error.detail))


async def _on_hindcast_error(request: Request, error: Exception) -> Response:
    code = status.HTTP_503_SERVICE_UNAVAILABLE
    if isinstance(error, BadInputError):
        code = status.HTTP_404_NOT_FOUND
    return _problem(request, code, str(error))


def _problem(request: Request, status_code: int, message: str) -> HTMLResponse:
    below = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
    root = "../" * below.count("/") or "./"
    return _page("problem.html", root, status_code=status_code, message=message, code=status_code)
