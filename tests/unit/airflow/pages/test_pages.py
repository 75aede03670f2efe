"""The control room's pages, asked as a browser does. Airflow's own guard stands before each of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pyarrow as pa
import pytest
import support.airflow_home  # noqa: F401 - before Airflow
from support.fleet_sample import (
    FAILED_RUN,
    JUDGED_AT,
    RUN,
    desired,
    difference,
    put,
    run,
    shard,
    slot,
    verdict,
    write_sample,
)

from hindcast.clock import SystemClock
from hindcast.errors import BadInputError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings
from hindcast.shards.pipeline_row import InactiveState, InactiveVersion
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables, TableVersion
from hindcast.tables.event_log import EventKind, EventLog
from hindcast.tables.run_states import BadEnd, close_run
from hindcast.tables.table_names import ControlTable
from hindcast.tables.verdict_trends import VerdictTrends, point_of

with warnings.catch_warnings():  # Airflow and FastAPI use what other libraries call deprecated
    warnings.simplefilter("ignore")
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import FastAPI
    from fastapi.routing import APIRoute
    from fastapi.testclient import TestClient

    from hindcast.airflow.pages import formats, quality_reports, views
    from hindcast.airflow.pages import web as pages_app
    from hindcast.airflow.pages.views import Views
    from hindcast.airflow.pages.web import create_app

pytestmark = pytest.mark.filterwarnings("ignore")

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
PAGES = ["", f"verdicts/{RUN}", f"verdicts/{FAILED_RUN}", "pipelines/stock_stats", "pipelines/order_totals"]


def client_of(app: FastAPI) -> TestClient:
    """A browser before an Airflow that is served below a prefix."""
    root = FastAPI()
    root.mount("/some/prefix/hindcast", app)
    return TestClient(
        root,
        base_url="http://airflow/some/prefix/hindcast/",
        headers={"accept": "text/html"},
        follow_redirects=False,
    )


@pytest.fixture(scope="module", autouse=True)
def _auth_manager() -> None:
    """Airflow's own simple one, as `hindcast up` runs it."""
    init_auth_manager()


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    write_sample(settings)
    return create_app(lambda: settings)


@pytest.fixture
def stranger(app: FastAPI) -> TestClient:
    """Somebody who is not signed in."""
    return client_of(app)


@pytest.fixture
def viewer(app: FastAPI) -> TestClient:
    """Somebody who is signed in with the least of roles."""
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vera", role="viewer")
    return client_of(app)


@pytest.fixture
def docs(settings: Settings) -> Path:
    """Data Docs with a page, an image and a script."""
    folder = settings.home / "data_docs"
    (folder / "validations").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Data Docs</h1>")
    (folder / "validations" / "run.html").write_text("<h1>Run</h1>")
    (folder / "logo.png").write_bytes(b"png")
    (folder / "app.js").write_text("alert(1)")
    (settings.home / "settings.json").write_text('{"secret": true}')
    return folder


def test_every_route_turns_a_stranger_away(app: FastAPI, stranger: TestClient, docs: Path) -> None:
    """No route is open, whatever it is asked; the list is the application's own, so that a new route is in
    it.
    """
    paths = [route.path for route in app.routes if isinstance(route, APIRoute)]
    assert len(paths) == len(app.routes) >= 5
    for path in paths:
        asked = path.lstrip("/").replace("{path:path}", "index.html").format(name="stock_stats", run_id=RUN)
        answer = stranger.get(asked)
        assert answer.status_code == 401, path
        assert "streams-1" not in answer.text
        assert "Data Docs" not in answer.text


def test_a_forged_token_is_refused(stranger: TestClient) -> None:
    """A token that Airflow did not sign is worth nothing, in a header or in the cookie."""
    assert stranger.get("", headers={"Authorization": "Bearer forged"}).status_code == 403
    stranger.cookies.set("_token", "forged")
    assert stranger.get("").status_code == 403


def test_a_user_without_a_role_is_refused(app: FastAPI) -> None:
    """Who may not see Airflow's plugins may not see the control room."""
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="nobody", role=None)
    assert client_of(app).get("").status_code == 403


def test_a_stranger_with_a_browser_is_told_where_to_sign_in(stranger: TestClient) -> None:
    """The way leads to Airflow itself, also from a page deep below."""
    answer = stranger.get(f"verdicts/{RUN}")
    assert "You are not signed in" in answer.text
    assert urljoin(str(answer.url), links(answer.text)[-1]) == "http://airflow/some/prefix/"


def test_a_refused_replay_is_on_its_pipelines_page_and_on_its_own(
    viewer: TestClient, settings: Settings
) -> None:
    """With the reason, although nothing was run."""
    end = BadEnd.of_error(BadInputError(problem="The range is reversed", cure="Give it the right way round."))
    close_run(ControlTables(settings), "r-refused", "stock_stats", end, since=datetime.now(UTC))
    for page in ("pipelines/stock_stats", "verdicts/r-refused"):
        shown = viewer.get(page).text
        assert "r-refused" in shown and "refused" in shown.replace("r-refused", "")
        assert "The range is reversed" in shown


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_shown_and_all_its_links_work(viewer: TestClient, page: str) -> None:
    """Links are relative: Airflow may be served below a prefix."""
    answer = viewer.get(page)
    assert answer.status_code == 200, answer.text
    for link in links(answer.text):
        assert not link.startswith(("/", "http"))
        assert viewer.get(urljoin(str(answer.url), link)).status_code == 200, link


def test_the_overview_shows_who_owns_what(viewer: TestClient) -> None:
    """Desired states, shards with owner, epoch and lag, workers, verdicts and events."""
    text = viewer.get("").text
    for expected in (
        "order_totals",
        "paused",
        "streams-1-4000-a1b2c3",
        "v1.g0.s1",
        "48,211",
        "99.931 %",
        RUN,
        "supervisor woke",
        "quiet",
    ):
        assert expected in text


def test_the_overview_shows_the_version_beside_the_active_one(viewer: TestClient, settings: Settings) -> None:
    """Which one it is, and what it is there for."""
    beside = InactiveVersion(version=7, state=InactiveState.CATCHING_UP, shards=1, tables=())
    Versions(LeaseTable(settings)).begin("stock_stats", beside, {0: 0}, columns_from=1)
    assert "also running: 7 catching up" in viewer.get("/").text


def test_a_verdict_names_the_rows_that_differ(viewer: TestClient) -> None:
    """Row, column and both values; the unexplained ones first."""
    text = viewer.get(f"verdicts/{FAILED_RUN}").text
    for expected in (
        "ticker NVDA",
        "2026-11-20 10:14:03 to 2026-11-20 10:14:08",
        "131.07",
        "129.88",
        "min_ask",
        "unexplained is 2",
    ):
        assert expected in text
    assert text.index("131.07") < text.index("late rows</span>")
    assert "131.4" not in text, "a column that is equal on both sides is not shown"


def test_a_verdict_without_windows_says_how_many_rows_it_compared(
    viewer: TestClient, settings: Settings
) -> None:
    """It would look as if nothing had been compared."""
    ControlTables(settings).append(
        ControlTable.VERDICTS, [verdict("no-windows", windows_compared=0, rows_compared=268_927)]
    )
    assert "<b>268,927</b><span>rows compared</span>" in viewer.get("verdicts/no-windows").text
    assert "<b>3,600</b><span>windows compared</span>" in viewer.get(f"verdicts/{RUN}").text


def test_a_verdict_shows_its_bounds(viewer: TestClient, settings: Settings) -> None:
    """What was measured, what is allowed, and how many rows are beyond it. A verdict of an older Hindcast has
    none.
    """
    text = viewer.get(f"verdicts/{RUN}").text
    beyond = '<td class="n bad">1.75</td><td class="n">1.5</td><td class="n bad">4</td>'
    assert f"<td>ratio bound</td><td><code>fees</code></td>{beyond}" in text
    assert '<td class="n">3.5e-09</td><td class="n">1e-06</td><td class="n">0</td>' in text
    ControlTables(settings).append(ControlTable.VERDICTS, [verdict("old", bounds=None)])
    assert "<h2>Bounds</h2>" not in viewer.get("verdicts/old").text


def test_a_verdict_shows_the_rows_of_its_own_judgement(viewer: TestClient, settings: Settings) -> None:
    """The run was judged before, with a smaller tolerance; then it passed."""
    tables = ControlTables(settings)
    tables.append(ControlTable.VERDICTS, [verdict("twice", judged_at=JUDGED_AT - timedelta(hours=1))])
    tables.append(ControlTable.DIFFERENCES, [difference("twice", found_at=JUDGED_AT - timedelta(hours=1))])
    assert "NVDA" in viewer.get("verdicts/twice").text
    tables.append(ControlTable.VERDICTS, [verdict("twice")])
    assert "NVDA" not in viewer.get("verdicts/twice").text


def test_pages_read_few_of_many_verdicts(
    viewer: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are tens of thousands after months, and a page asks again each ten seconds."""
    at = JUDGED_AT - timedelta(days=1)
    tables = ControlTables(settings)
    times = [at - timedelta(hours=number) for number in range(200)]
    tables.append(ControlTable.VERDICTS, [verdict(f"old-{time}", judged_at=time) for time in times])
    tables.append(ControlTable.RUNS, [run(f"old-{time}", started_at=time) for time in times])
    whole: list[int] = []
    read = TableVersion.read

    def counted(self: TableVersion, *given: Any, **named: Any) -> pa.Table:
        found = read(self, *given, **named)
        if self.name in {ControlTable.VERDICTS, ControlTable.RUNS} and found.num_columns > 3:
            whole.append(found.num_rows)
        return found

    monkeypatch.setattr(TableVersion, "read", counted)
    for page in ("", "pipelines/stock_stats"):
        assert "stock_stats" in viewer.get(page).text
    assert whole
    assert max(whole) <= 50


def test_rows_beyond_a_bound_come_before_what_is_explained(settings: Settings) -> None:
    """Unexplained ones come first of all."""
    rows = [
        difference("r", cause="late_rows", kind="changed", column="a"),
        difference("r", cause="bound", kind="ratio", column="b"),
        difference("r", cause="unexplained", kind="missing", column="c"),
    ]
    tables = ControlTables(settings)
    tables.append(ControlTable.VERDICTS, [verdict("r")])
    tables.append(ControlTable.DIFFERENCES, rows)
    found = Views(Installation(settings), SystemClock()).verdict("r")
    assert found is not None
    assert [row["cause"] for row in found["differences"]] == ["unexplained", "bound", "late_rows"]


def test_a_pipeline_shows_the_trend_of_its_verdicts(viewer: TestClient) -> None:
    """For each measure the newest, the median and the worst figure, with the worst one's run and a picture. A
    pipeline without verdicts has no such section.
    """
    text = viewer.get("pipelines/stock_stats").text
    assert "Verdicts of version 1 over time: 5 in all" in text
    row = text.partition("<td>captured</td>")[2].partition("</tr>")[0]
    assert [figure in row for figure in ("99.931 %", "99.700 %", "99.218 %")] == [True] * 3
    assert f'<a href="../verdicts/{FAILED_RUN}">' in row
    assert '<polyline points="3.0,' in row
    assert "over time" not in viewer.get("pipelines/order_totals").text


def test_the_picture_of_a_trend() -> None:
    """The greatest value is on top. Unknown values interrupt the line, and one that stands alone is a dot."""
    assert formats.trend_lines([1.0, 3.0, 2.0]) == ["3.0,25.0 80.0,3.0 157.0,14.0"]
    assert formats.trend_lines([5.0, 5.0]) == ["3.0,14.0 157.0,14.0"]
    assert formats.trend_lines([1.0, None, 2.0]) == ["3.0,25.0 3.0,25.0", "157.0,3.0 157.0,3.0"]
    assert formats.trend_lines([7.0]) == ["3.0,14.0 3.0,14.0"]
    assert formats.trend_lines([None]) == formats.trend_lines([]) == []


@pytest.mark.parametrize("known", [True, False])
def test_the_overview_says_that_the_drivers_pool_is_missing(
    viewer: TestClient, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Airflow starts no task of a pool that it does not have, and shows nothing but tasks that wait."""
    asked: list[str] = []
    monkeypatch.setattr(pages_app, "pool_exists", lambda name: asked.append(name) or known)
    assert ("airflow pools set hindcast_spark" in viewer.get("").text) is not known
    assert asked == ["hindcast_spark"]


def test_an_empty_platform_has_an_overview(settings: Settings) -> None:
    """Before the first worker and the first verdict, the page says what to do."""
    app = create_app(lambda: settings)
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vera", role="viewer")
    answer = client_of(app).get("")
    assert answer.status_code == 200
    assert "Unpause the DAG" in answer.text


def test_hostile_data_stays_text(settings: Settings) -> None:
    """Names, messages and values of a stream are data of strangers: none of them becomes markup on any
    page.
    """
    put(
        settings,
        desired(HOSTILE),
        desired("p"),
        shard("p", 0, HOSTILE),
        slot(0, HOSTILE).evolve(detail={"pid": HOSTILE, "host": HOSTILE}),
    )
    tables = ControlTables(settings)
    bound = {"bound": 2.0, "greatest": 1.0, "beyond": 0, "without_figure": 0}
    bounds = json.dumps({"ratio_bound": {HOSTILE: bound}})
    ratios = json.dumps({HOSTILE: {HOSTILE: HOSTILE}})
    tables.append(ControlTable.VERDICTS, [verdict("r", "p", failed=HOSTILE, ratios=ratios, bounds=bounds)])
    of_column = verdict("r", "p", ratios=json.dumps({HOSTILE: {HOSTILE: 1.0}}), bounds=bounds)
    VerdictTrends(tables).add("p", 1, replace(point_of(of_column, {}), run_id=HOSTILE))
    tables.append(ControlTable.RUNS, [run("r", "p", note=HOSTILE, state=HOSTILE)])
    hostile = {
        "keys": json.dumps({HOSTILE: HOSTILE}),
        "column": HOSTILE,
        "stream_value": HOSTILE,
        "hindcast_value": HOSTILE,
        "kind": HOSTILE,
    }
    tables.append(ControlTable.DIFFERENCES, [difference("r", **hostile, cause=HOSTILE)])
    EventLog(tables).record(EventKind.QUERY_FAILED, HOSTILE, cure=HOSTILE, pipeline="p", shard=HOSTILE)
    app = create_app(lambda: settings)
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="vera", role="viewer")
    viewer = client_of(app)
    for page in ("", "pipelines/p", "verdicts/r"):
        answer = viewer.get(page)
        assert answer.status_code == 200
        assert "alert(1)" in answer.text, "the page does not show the hostile data at all"
        assert tags(answer.text).isdisjoint({"script", "img", "iframe"})
        assert "script-src" not in (policy := answer.headers["content-security-policy"])
        assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "page",
    [f"pipelines/{HOSTILE}", "verdicts/%2e%2e", "pipelines/nope", "verdicts/nope", "verdicts/nope/data-docs"],
)
def test_an_unknown_or_malformed_name_is_not_found(viewer: TestClient, page: str) -> None:
    """With a page that says so and repeats nothing as markup."""
    answer = viewer.get(page.replace("/", "%2F").replace("%2F", "/", 1) if "script" in page else page)
    assert answer.status_code == 404
    assert tags(answer.text).isdisjoint({"script", "img"})


def test_data_docs_are_served_with_their_types(viewer: TestClient, docs: Path) -> None:
    """Pages as HTML that may run no script, images as images; scripts not at all."""
    page = viewer.get("data-docs/validations/run.html")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "script-src" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert viewer.get("data-docs/logo.png").headers["content-type"] == "image/png"
    assert "sandbox" in page.headers["content-security-policy"]
    assert "<h1>Run</h1>" in page.text
    assert urljoin(str(page.url), links(page.text)[0]) == "http://airflow/some/prefix/hindcast/"
    assert viewer.get("data-docs/app.js").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../settings.json",
            "%2e%2e/settings.json",
            "..%2fsettings.json",
            "validations/../../settings.json",
            "....//settings.json",
        ),
        *(
            "/etc/passwd",
            "%2fetc%2fpasswd",
            "//etc/passwd",
            "validations%00.html",
            "..\\settings.json",
            "link.html",
            "folder/settings.html",
        ),
    ],
)
def test_nothing_outside_data_docs_can_be_read(
    viewer: TestClient, docs: Path, settings: Settings, path: str
) -> None:
    """No spelling of a path leads out of the folder, and no link in it does."""
    (settings.home / "settings.html").write_text("secret")
    (docs / "link.html").symlink_to(settings.home / "settings.html")
    (docs / "folder").symlink_to(settings.home)
    answer = viewer.get(f"data-docs/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["../settings.html", "/etc/passwd", "a/../../settings.html", "\0"])
def test_the_locator_itself_never_leaves_its_root(docs: Path, settings: Settings, path: str) -> None:
    """Also without a web server that tidies paths before."""
    (settings.home / "settings.html").write_text("secret")
    assert quality_reports.locate(docs, path) is None


def test_a_run_leads_to_its_data_docs(
    viewer: TestClient, docs: Path, settings: Settings, subtests: pytest.Subtests
) -> None:
    """The verdict records where they are, as a path or a file URL; one outside the folder is no link."""
    tables = ControlTables(settings)
    inside = docs / "validations" / "run.html"
    for number, (recorded, found) in enumerate(
        [
            (str(inside), True),
            (inside.as_uri(), True),
            ("validations/run.html", True),
            ("/etc/passwd", False),
            ("", False),
        ]
    ):
        with subtests.test(recorded=recorded):
            run_id = f"docs-{number}"
            tables.append(ControlTable.VERDICTS, [verdict(run_id, data_docs=recorded)])
            answer = viewer.get(f"verdicts/{run_id}/data-docs")
            assert ("Data Docs of this verdict" in viewer.get(f"verdicts/{run_id}").text) is found
            assert answer.status_code == (307 if found else 404)
            if found:
                assert viewer.get(urljoin(str(answer.url), answer.headers["location"])).text.endswith(
                    "<h1>Run</h1>"
                )


def test_data_docs_have_an_index_that_needs_no_script(
    viewer: TestClient, docs: Path, settings: Settings
) -> None:
    """The verdicts that have Data Docs; Great Expectations' own index is filled in by a script, which does
    not run here.
    """
    ControlTables(settings).append(
        ControlTable.VERDICTS, [verdict("documented", data_docs=str(docs / "validations" / "run.html"))]
    )
    for address in ("data-docs/", "data-docs/index.html"):
        page = viewer.get(address)
        link = next(link for link in links(page.text) if link.endswith("run.html"))
        assert viewer.get(urljoin(str(page.url), link)).status_code == 200
        assert RUN not in page.text


def test_the_index_lists_the_newest_verdicts(
    viewer: TestClient, docs: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After months there are tens of thousands, and a page of all of them would be of no use."""
    monkeypatch.setattr(views, "SHOWN_DOCUMENTED", 2)
    page = str(docs / "validations" / "run.html")
    rows = []
    for number in range(4):
        judged_at = datetime(2030, 1, 1, hour=number, tzinfo=UTC)
        rows.append(verdict(f"documented-{number}", data_docs=page, judged_at=judged_at))
    ControlTables(settings).append(ControlTable.VERDICTS, rows)
    text = viewer.get("data-docs/").text
    assert [number for number in range(4) if f"documented-{number}" in text] == [2, 3]
    assert text.index("documented-3") < text.index("documented-2")
    assert "pages of their runs" in text


def test_tables_that_cannot_be_read_are_named(
    viewer: TestClient, settings: Settings, break_tables: Callable[[], None]
) -> None:
    """A store that is away gives a page with the reason, not a traceback."""
    break_tables()
    answer = viewer.get("")
    assert answer.status_code == 503
    assert "The tables cannot be read" in answer.text


@pytest.fixture
def break_tables(settings: Settings) -> Callable[[], None]:
    def do() -> None:
        log = Path(settings.table("control", "leases")) / "_delta_log"
        for file in log.iterdir():
            file.write_text("torn")

    return do


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.hrefs += [value or "" for name, value in attrs if name == "href"]


def _collect(html: str) -> _Collector:
    collector = _Collector()
    collector.feed(html)
    return collector


def tags(html: str) -> set[str]:
    """The names of all elements, as a parser sees them."""
    return _collect(html).names


def links(html: str) -> list[str]:
    """All link targets, as they are written."""
    return _collect(html).hrefs


def test_a_shard_that_has_ended_counts_no_more(settings: Settings) -> None:
    """After a resharding the old generation is on the pipeline's own page, and in no total."""
    put(
        settings,
        desired(),
        shard("stock_stats", 0, "w", lag=7),
        shard("stock_stats", 1, "", lag=999, state="TERMINATED"),
    )
    facts = Views(Installation(settings), SystemClock())
    assert facts.overview()["lag"] == 7
    assert [row["shard"] for row in facts.overview()["shards"]] == ["v1.g0.s0"]
    found = facts.pipeline("stock_stats")
    assert found is not None
    assert [row["state"] for row in found["shards"]] == ["OPEN", "TERMINATED"]
