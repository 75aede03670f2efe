"""Names that a user gave: check that they are known, and suggest the known names that are close."""

from __future__ import annotations

from collections.abc import Iterable

from hindcast import Hindcast
from hindcast.errors import UnknownNameError, UnknownPipelineError
from hindcast.pipeline import check_name

#: A message lists all known names up to this count; of more, only those that are close.
_FEW = 8


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether one of the close names was meant; empty if none is close."""
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), n=3)
    if not close:
        return ""
    *others, last = close
    if others:
        return f"Did you mean {', '.join(others)} or {last}?"
    return f"Did you mean {last}?"


def check_known(what: str, name: str, known: Iterable[str], cure: str = "") -> None:
    """:raises UnknownNameError: lists the names that are close, and all of them if they are few"""
    names = list(dict.fromkeys(known))
    if name in names:
        return
    hints: list[str] = []
    close = meant(name, names)
    if close:
        hints.append(close)
    few = len(names) <= _FEW
    if names and (few or not close):
        hints.append(f"There are: {', '.join(names)}.")
    if cure:
        hints.append(cure)
    raise UnknownNameError(what=what, name=name, hint=" ".join(hints))


def check_pipeline(hindcast: Hindcast, name: str, rows_of: Iterable[str] = ()) -> None:
    """Check that a pipeline of that name is declared, or once was: its leases and rows outlive its file.

    :param rows_of: the pipelines of which a table has rows
    :raises UnknownPipelineError: if it is none of them
    """
    from hindcast.leases.lease import StatusType

    check_name("pipeline", name)
    found = hindcast.catalog
    known = {*found, *rows_of}
    for lease in hindcast.leases():
        if lease.status_type in (StatusType.SHARD, StatusType.PIPELINE):
            known.add(lease.stream_id)
    if name not in known:
        found.versions(name)


def did_you_mean(error: UnknownPipelineError) -> str:
    """The question whether one of the pipelines that the error lists was meant; empty if none is close."""
    known = str(error.fields.get("known", ""))
    names, _, _ = known.partition(";")
    name = str(error.fields.get("pipeline", ""))
    return meant(name, names.split(", "))
