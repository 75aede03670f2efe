"""Names that a person gave: whether they are known, and which of the known ones may have been meant."""

from __future__ import annotations

from collections.abc import Iterable

from hindcast.errors import UnknownNameError, UnknownPipelineError
from hindcast.pipeline import check_name
from hindcast.settings import Settings

#: So many names are all told; of more, those that are close.
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
    """:raises UnknownNameError: naming those that are close, and all if they are few"""
    names = list(dict.fromkeys(known))
    if name in names:
        return
    close = meant(name, names)
    hints = [close] if close else []
    if names and (len(names) <= _FEW or not close):
        hints.append(f"There are: {', '.join(names)}.")
    hints += [cure] if cure else []
    raise UnknownNameError(what=what, name=name, hint=" ".join(hints))


def check_pipeline(settings: Settings, name: str, rows_of: Iterable[str] = ()) -> None:
    """Whether a pipeline of that name is declared, or ever was: its leases and rows outlive its file.

    :param rows_of: the pipelines of which a table has rows
    :raises UnknownPipelineError: if it is none of them
    """
    from hindcast import catalog
    from hindcast.control.lease_table import read_leases
    from hindcast.control.leases import StatusType

    check_name("pipeline", name)
    found = catalog.load(settings.pipelines_dir)
    leased = {lease.stream_id for lease in read_leases(settings) if lease.status_type in (StatusType.SHARD, StatusType.PIPELINE)}
    if name not in {*found, *leased, *rows_of}:
        found.versions(name)


def did_you_mean(error: UnknownPipelineError) -> str:
    """The pipelines that may have been meant, of those that the error names."""
    names, _, _ = str(error.fields.get("known", "")).partition(";")
    return meant(str(error.fields.get("pipeline", "")), names.split(", "))
