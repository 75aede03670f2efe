"""The online algorithms keep their proven bounds on 1,000 random inputs, and reach them on the
adversary's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.competitive_ratios import INPUTS, Ratios, ratios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, Ratios]:
    return ratios(spark)


@pytest.mark.parametrize(
    ("rule", "worst"), [("rent_until_equal", 1.9), ("always_buy", 10.0), ("first_fit", 5 / 3)]
)
def test_a_bound_is_kept_and_the_adversary_reaches_what_he_can(
    found: dict[str, Ratios], rule: str, worst: float
) -> None:
    """No input pays less than hindsight or more than the bound; the worst input pays exactly what is known of
    it.
    """
    measured = found[rule]
    assert len(measured.random) == INPUTS
    assert 1.0 <= min(measured.random) <= max(measured.random) <= measured.bound + 1e-9
    assert max(measured.adversary) == pytest.approx(worst)
    assert max(measured.adversary) <= measured.bound + 1e-9
