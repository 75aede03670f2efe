"""Data Docs as files below one folder, and nothing else of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

#: What Great Expectations writes; anything else is not served.
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ico": "image/x-icon",
    ".otf": "font/otf",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}

#: Great Expectations writes values of the stream's rows into its pages unescaped (seen in 1.24.1), and
#: Airflow's own origin serves them with its session cookie. So none of their scripts runs, no page
#: redirects, and nothing is fetched from elsewhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "form-action 'none'; base-uri 'none'; sandbox allow-same-origin"
)

_BODY = re.compile(r"<body\b[^>]*>", re.IGNORECASE)


def locate(root: Path, path: str) -> Path | None:
    """The file at the path below the root; None if it is outside, missing or of another kind.

    Links are followed first. A folder stands for its ``index.html``.
    """
    if "\0" in path:
        return None
    base = root.resolve()
    found = (base / path).resolve()
    if found.is_dir():
        found /= "index.html"
    if not found.is_relative_to(base) or found.suffix.lower() not in CONTENT_TYPES or not found.is_file():
        return None
    return found


def dressed(html: str, top: str) -> str:
    """The page with ``top`` (our own markup) first in its body.

    Without its scripts the page has neither a style nor a way back; ``top`` gives it both.
    """
    body = _BODY.search(html)
    if body is None:
        return top + html
    return html[: body.end()] + top + html[body.end() :]


def relative_url(root: Path, recorded: str) -> str:
    """What a verdict recorded (a path or file URL) as a quoted path below the root; empty if outside."""
    path = Path(recorded)
    if recorded.startswith("file:"):
        path = Path(unquote(urlsplit(recorded).path))
    try:
        below = (root / path).resolve().relative_to(root.resolve())
    except ValueError:
        return ""
    return quote(below.as_posix())
