"""A pipeline of two versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.inactive_version import NAME, put
from support.live_stream import MODULE

from hindcast import catalog
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings
from hindcast.shards import resharding
from hindcast.shards.desired_state import DesiredStates
from hindcast.versions import promote as promote_module


@pytest.fixture
def two(
    settings_factory: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A pipeline whose version 1 has windows that end at 5 to 9 s. Version 2 is declared. Promotions do not
    wait.
    """
    settings = settings_factory(pipelines_dir=tmp_path)
    for version, table in ((1, NAME), (2, f"{NAME}_v2")):
        text = MODULE.replace('Table("{name}"', f'Table("{table}"')
        (tmp_path / f"{NAME}_{version}.py").write_text(
            text.format(topic="t", name=NAME, version=version, shards=1)
        )
    store = LeaseTable(settings)
    DesiredStates(store).declare(catalog.load(tmp_path)[NAME], 1)
    resharding.create(store, NAME, 1, 1, {0: 0})
    put(settings, NAME, range(5, 10), "one")
    monkeypatch.setattr(promote_module, "WAIT_SECONDS", 0.0)
    return settings
