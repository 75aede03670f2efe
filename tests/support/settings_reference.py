"""The page of docs/reference that is made from the settings' own descriptions."""

from __future__ import annotations

import json
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hindcast.settings import PREFIX, Settings

_HEAD = """# Settings

`make reference` writes this page from `include/hindcast/settings.py`.

A setting is read from its variable, else from `$HINDCAST_HOME/settings.json` (there by its name in small letters, without the prefix),
which `hindcast up` writes. Durations are in seconds unless the name says another unit. A variable whose name is nearly that of a
setting is refused.

| variable | default | meaning |
|---|---|---|
"""


def reference() -> str:
    """The whole page."""
    rows = [_row(name, field) for name, field in Settings.model_fields.items()]
    return _HEAD + "".join(rows)


def _row(name: str, field: FieldInfo) -> str:
    assert field.description, f"the setting {name} has no description"
    return f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value in (PydanticUndefined, None, ""):
        return ""
    if isinstance(value, str):
        return f"`{value}`"
    return f"`{json.dumps(value)}`"
