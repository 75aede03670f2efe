"""Which of Spark's settings a deployment may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hindcast.errors import SettingsRefusedError
from hindcast.settings import Settings
from hindcast.spark import session

REFUSED = {
    "spark.sql.session.timeZone": "CET",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.driver.memory": "9g",
    "spark.master": "local[1]",
    "park.ui.enabled": "true",
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_results_rest_on_is_refused_by_name(
    settings_factory: Callable[..., Settings], tmp_path: Path, key: str
) -> None:
    """Before a JVM starts; all that is wrong at once, and no value is shown."""
    (tmp_path / "one.jar").touch()
    given = {key: REFUSED[key], "spark.executor.memory": "4g", "other": "s3cret"}
    settings = settings_factory(jars_dir=tmp_path, spark_conf=given)
    with pytest.raises(SettingsRefusedError) as refused:
        session.build(settings, "refused")
    said = str(refused.value)
    assert key in said
    assert "other is no setting" in said
    assert "executor" not in said
    assert "s3cret" not in said
    assert refused.value.fields["count"] == 2


def test_a_setting_that_is_no_json_is_refused_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold secrets."""
    monkeypatch.setenv("HINDCAST_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "s3cret"')
    with pytest.raises(SettingsRefusedError) as refused:
        Settings()
    assert "SPARK_CONF" in str(refused.value)
    assert "s3cret" not in str(refused.value)
