"""What proves a version, and what is promoted without a proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.inactive_version import (
    LONG_AGO,
    NAME,
    PROMOTED,
    at,
    begin,
    caught_up,
    compare,
    judge,
    proved,
    put,
)

from hindcast.errors import VersionRefusedError
from hindcast.installation import Installation
from hindcast.leases.delta_store import LeaseTable
from hindcast.settings import Settings
from hindcast.shards.version_changes import Versions
from hindcast.tables.control_tables import ControlTables
from hindcast.tables.schema import LATER, SCHEMAS
from hindcast.tables.table_names import ControlTable
from hindcast.versions.promote import promote

#: What the refusal says if version 1 has closed more windows than version 2.
WINDOWS_BEHIND = (
    r"its windows are final up to 1970-01-01T00:00:09\+00:00, "
    r"those of version 1 up to 1970-01-01T00:00:09\.001"
)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda _: None, "it has not caught up"),
        (lambda s: proved(s, judged=False), "it has no verdict since it caught up"),
        (
            lambda s: proved(s, passed=False),
            "its newest verdict, of run r, failed: 1 differences are unexplained",
        ),
        (
            lambda s: proved(s, passed=False, broken=["no_nulls", "no_gaps"]),
            "its newest verdict, of run r, failed: no_nulls; no_gaps",
        ),
        (lambda s: proved(s, compared=False), "it was not compared with version 1"),
        (
            lambda s: proved(s, failed=["3 windows are only in version 1"]),
            "the comparison with version 1 failed: 3 windows",
        ),
        (
            lambda s: proved(s, failed=["a is gone", "b is new"]),
            "the comparison with version 1 failed: a is gone; b is new",
        ),
        (lambda s: (proved(s), at(s, 1, 60, 9_000)), "it is 10 records behind version 1"),
        (lambda s: (proved(s), at(s, 1, 50, 9_001)), WINDOWS_BEHIND),
    ],
)
def test_what_is_not_proved_is_promoted_only_with_a_reason(
    two: Settings, prepare: Callable[[Settings], object], says: str
) -> None:
    """Without --despite nothing changes. With it readers switch, and the event keeps the reason and who gave
    it.
    """
    begin(two)
    put(two, f"{NAME}_v2", range(5, 10), "two")
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    prepare(two)
    before = LeaseTable(two).leases()
    with pytest.raises(VersionRefusedError, match=says) as caught:
        promote(Installation(two), NAME, 2)
    assert {name: caught.value.fields[name] for name in ("pipeline", "version", "action")} == PROMOTED
    assert "--despite" in str(caught.value.fields["cure"])
    assert LeaseTable(two).leases() == before
    promote(Installation(two), NAME, 2, despite="version 1 is wrong", who="ada")
    (event,) = ControlTables(two).rows(ControlTable.EVENTS, [("kind", "=", "version_promoted")])
    assert "although it was not proved: version 1 is wrong" in event["message"]
    assert json.loads(event["detail"])["who"] == "ada"


@pytest.mark.parametrize("passed", [True, False])
def test_what_was_judged_before_it_caught_up_is_no_proof(two: Settings, passed: bool) -> None:
    """Even if the clock of the host that judged it is years ahead."""
    begin(two)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    judge(
        two,
        run_id="old",
        passed=passed,
        unexplained=int(not passed),
        change=1,
        number=7,
        judged_at=datetime(2101, 1, 1, tzinfo=UTC),
    )
    compare(two, failed=[], change=1, number=7)
    proved(two, judged=False, compared=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up"):
        promote(Installation(two), NAME, 2)
    proved(two, compared=False)
    with pytest.raises(VersionRefusedError, match="it was not compared with version 1"):
        promote(Installation(two), NAME, 2)
    proved(two)
    assert promote(Installation(two), NAME, 2)["promoted"]


def test_the_refusal_of_a_version_without_a_verdict_says_how_to_judge_it(two: Settings) -> None:
    """The cure names the command and the version."""
    begin(two)
    proved(two, judged=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up") as caught:
        promote(Installation(two), NAME, 2)
    assert f"`hindcast validate {NAME} --version 2 --all` judges it" in str(caught.value.fields["cure"])


def test_a_verdict_of_another_version_or_pipeline_does_not_count(two: Settings) -> None:
    """Whether it passed or failed, and however new it is."""
    caught_up(two)
    changes = Versions(LeaseTable(two)).of(NAME).changes
    for pipeline, version in ((NAME, 1), ("other", 2)):
        judge(two, pipeline=pipeline, version=version, passed=False, unexplained=1, change=changes, number=9)
    assert promote(Installation(two), NAME, 2)["promoted"]


@pytest.mark.parametrize(
    ("numbers", "says"), [((2, 1), ""), ((1, 2), "of run bad, failed"), ((2, 2), "of run bad, failed")]
)
def test_the_newest_proof_is_that_of_the_highest_number(
    two: Settings, numbers: tuple[int, int], says: str
) -> None:
    """It is not the one with the latest time. Of two that were given at once the failed one counts."""
    caught_up(two)
    changes = Versions(LeaseTable(two)).of(NAME).changes
    good, bad = numbers
    good_at = LONG_AGO
    bad_at = datetime(2101, 1, 1, tzinfo=UTC)
    if says:
        good_at, bad_at = bad_at, good_at
    judge(two, run_id="good", change=changes, number=good, judged_at=good_at)
    judge(two, run_id="bad", passed=False, unexplained=1, change=changes, number=bad, judged_at=bad_at)
    if says:
        with pytest.raises(VersionRefusedError, match=says):
            promote(Installation(two), NAME, 2)
    else:
        assert promote(Installation(two), NAME, 2)["promoted"]


def test_verdicts_that_an_older_hindcast_gave_are_kept_and_prove_nothing(two: Settings) -> None:
    """Its table lacks the columns that order verdicts. These are added, and are empty in the rows that were
    there.
    """
    later = LATER[ControlTable.VERDICTS]
    older = pa.schema([field for field in SCHEMAS[ControlTable.VERDICTS] if field.name not in later])
    verdict = {"run_id": "old", "passed": True, "failed": "[]", "unexplained": 0}
    row = {**verdict, "pipeline": NAME, "version": 2, "schema_version": 1}
    write_deltalake(two.table("control", "verdicts"), pa.Table.from_pylist([row], schema=older))
    begin(two)
    at(two, 1, 50, 9_000)
    at(two, 2, 50, 9_000)
    proved(two, judged=False)
    with pytest.raises(VersionRefusedError, match="it has no verdict since it caught up"):
        promote(Installation(two), NAME, 2)
    proved(two)
    rows = ControlTables(two).rows(ControlTable.VERDICTS, [("version", "=", 2)])
    assert [row["run_id"] for row in rows].count("old") == 1
    assert promote(Installation(two), NAME, 2)["promoted"]
