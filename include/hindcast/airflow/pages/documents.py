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

#: Great Expectations writes values of the stream's rows into its pages unescaped (seen in 1.24.1), and they are served from Airflow's
#: own origin, beside its session cookie: so no script of theirs runs, no page redirects, and nothing is fetched from elsewhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; form-action 'none'; base-uri 'none'; "
    "sandbox allow-same-origin"
)

_BODY = re.compile(r"<body\b[^>]*>", re.IGNORECASE)


def locate(root: Path, path: str) -> Path | None:
    """The file at the path below the root, following links; None where it is outside, missing or of another kind.

    A folder stands for its ``index.html``.
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
    """The page with ``top`` (markup that is ours) as the first thing of its body: without its scripts it has no look and no way back."""
    body = _BODY.search(html)
    return html[: body.end()] + top + html[body.end() :] if body else top + html


def relative_url(root: Path, recorded: str) -> str:
    """What a verdict recorded (a path or a file URL) as a path below the root, quoted; empty where it is not below it."""
    path = Path(unquote(urlsplit(recorded).path)) if recorded.startswith("file:") else Path(recorded)
    try:
        return quote((root / path).resolve().relative_to(root.resolve()).as_posix())
    except ValueError:
        return ""
