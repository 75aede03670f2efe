"""The pages of docs/reference that are made from docstrings: the public object, and what declares a pipeline."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from functools import cached_property
from typing import Any

import hindcast
from hindcast.app import Hindcast, InstalledPipeline

_HEAD = """# Python reference

`make reference` writes this page from the docstrings in `include/hindcast/app.py` and `installation.py`.

An installation is an object. It reads the same settings as the commands do, and each command is a thin caller of it:

```python
from hindcast import Hindcast

hindcast = Hindcast()
stock_stats = hindcast.pipeline("stock_stats")
verdict = stock_stats.validate(everything=True)
print(verdict["passed"], verdict["unexplained"])
print(stock_stats.read().pandas())
```

Errors are subclasses of [`hindcast.errors.HindcastError`](errors.md). The text of an error names the cure, and its `exit_code` is
that of the command.
"""

_DECLARATIONS = """# What declares a pipeline

`make reference` writes this page from the docstrings in `include/hindcast/pipeline.py`.

A file of pipelines imports these names from `hindcast`. [How to write one](../how-to/your-own-pipeline.md) begins with an example.
`hindcast check` lists every mistake of every file, with its line and a valid form.
"""

#: In this order on the page.
_DECLARE = (
    "pipeline",
    "verified",
    "Topic",
    "Format",
    "Metadata",
    "Lookup",
    "Window",
    "Table",
    "Mode",
    "Served",
    "Policy",
)

_ROLE = re.compile(r":(?:class|meth|func|data|attr|mod):`~?([^`]+)`")
#: Python keeps the annotations of a module as texts, and shows those in quotes.
_ANNOTATION = re.compile(r"(: |-> )'([^']*)'")
#: A member of an enumeration, as Python shows it: its word can be written for it.
_MEMBER = re.compile(r"<\w+\.\w+: ([\w-]+)>")
_FIELD = re.compile(r"^:(param|raises|returns)\s*([^:]*):\s*(.*)$")


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_class("Hindcast", Hindcast), *_class("InstalledPipeline", InstalledPipeline)]
    return "\n".join(parts)


def declarations() -> str:
    """The page of what declares a pipeline."""
    parts = [_DECLARATIONS]
    for name in _DECLARE:
        described = getattr(hindcast, name)
        parts += [f"## {name}", ""]
        if isinstance(described, EnumType):
            members = ", ".join(f'`"{member.value}"`' for member in described)
            parts += [_text(inspect.getdoc(described) or ""), "", f"One of {members}.", ""]
        else:
            parts += [
                "```text",
                *_call(name, described),
                "```",
                "",
                _text(inspect.getdoc(described) or ""),
                "",
            ]
    return "\n".join(parts)


def _call(name: str, described: Any) -> Iterator[str]:
    """The arguments of a declaration, one a line."""
    yield f"{name}("
    for parameter in inspect.signature(described).parameters.values():
        written = _ANNOTATION.sub(r"\1\2", str(parameter))
        written = _MEMBER.sub(r"'\1'", written)
        written = written.replace("list[str] = <factory>", "list[str] = []")
        written = written.replace("dict[str, str] = <factory>", "dict[str, str] = {}")
        yield f"    {written},"
    yield ")"


def _class(name: str, described: type) -> list[str]:
    parts = [f"## {name}", "", _text(inspect.getdoc(described) or ""), ""]
    for member, value in _members(described):
        if member.startswith("_"):
            continue
        parts += [f"### `{_heading(member, value)}`", "", _text(_doc(value)), ""]
    return parts


def _members(described: type) -> Iterator[tuple[str, Any]]:
    """What a class and its bases define, the bases first."""
    for base in reversed(described.__mro__[:-1]):
        yield from vars(base).items()


def _heading(name: str, value: Any) -> str:
    if isinstance(value, property | cached_property):
        return name
    signature = inspect.signature(value)
    given = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    shown = signature.replace(parameters=given)
    written = _ANNOTATION.sub(r"\1\2", f"{name}{shown}")
    return written.replace("**range_: Unpack[RangeFields]", "**range_")


def _doc(value: Any) -> str:
    if isinstance(value, cached_property):
        return inspect.getdoc(value.func) or ""
    return inspect.getdoc(value) or ""


def _text(doc: str) -> str:
    """A docstring as Markdown: its fields become a list."""
    lines: list[str] = []
    in_fields = False
    for line in doc.splitlines():
        plain = _ROLE.sub(r"`\1`", line.replace("``", "`"))
        field = _FIELD.match(plain)
        if field:
            kind, subject, text = field.groups()
            lines.append(_item(kind, subject, text))
            in_fields = True
        elif in_fields and plain.strip():
            lines[-1] += f" {plain.strip()}"
        else:
            lines.append(plain)
    return "\n".join(lines).replace("::\n", ":\n")


def _item(kind: str, subject: str, text: str) -> str:
    if kind == "param":
        return f"- `{subject}`: {text}"
    if kind == "raises":
        return f"- raises `{subject}` {text}"
    return f"- returns {text}"
