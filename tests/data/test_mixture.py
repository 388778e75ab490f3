from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.difficulty import pass_rate_row, rank_correlation, seeded_subset, summarise
from mathrl.data.mixture import largest_remainders, mix
from mathrl.params.data import Mix


def problems(source: str, count: int) -> list[Problem]:
    return [Problem(f"{source}{i}", f"{source} {i}?", ("1",), source, "rl", level=i % 3) for i in range(count)]


POOL = problems("a", 40) + problems("b", 20)
RATES = {p.id: i % 5 / 4 for i, p in enumerate(POOL) if p.id != "b19"}


def how(*components: dict[str, Any], **more: Any) -> Mix:
    return Mix.model_validate({"components": components, **more})


def counts(mixture: list[Problem]) -> dict[str, int]:
    return {source: sum(p.source == source for p in mixture) for source in ("a", "b")}


def test_weights_are_exact_proportions_as_large_as_the_scarcest_or_the_size_allows() -> None:
    mixture, manifest = mix(POOL, {}, how({"source": "a", "weight": 1}, {"source": "b", "weight": 2}), seed=0)
    assert counts(mixture) == {"a": 10, "b": 20}
    assert [part["taken"] for part in manifest["components"]] == [10, 20] and manifest["left_out"] == 30
    mixture, _ = mix(POOL, {}, how({"source": "a", "weight": 1}, {"source": "b", "weight": 2}, size=20), seed=0)
    assert counts(mixture) == {"a": 7, "b": 13}


def test_counts_come_first_and_weights_share_the_rest() -> None:
    mixture, _ = mix(POOL, {}, how({"source": "b", "count": 5}, {"source": "*", "weight": 1}, size=30), seed=0)
    assert counts(mixture)["b"] == 5 and len(mixture) == 30


def test_a_band_keeps_measured_problems_within_it() -> None:
    mixture, _ = mix(POOL, RATES, how({"source": "*", "weight": 1, "band": [0.25, 0.75]}), seed=0)
    assert {p.pass_rate for p in mixture} == {0.25, 0.5, 0.75}
    assert len(mixture) == sum(0.25 <= r <= 0.75 for r in RATES.values())
    assert "b19" not in {p.id for p in mixture}


def test_a_problem_goes_to_the_first_component_that_fits() -> None:
    parts = ({"source": "a", "weight": 1, "band": [0, 0.5]}, {"source": "a", "weight": 1})
    mixture, manifest = mix(POOL, RATES, how(*parts), seed=0)
    assert len({p.id for p in mixture}) == len(mixture)
    assert [part["available"] for part in manifest["components"]] == [24, 16]


def test_more_rows_than_problems_are_whole_passes_and_a_seeded_rest() -> None:
    mixture, manifest = mix(
        POOL, {}, how({"source": "b", "count": 50, "epochs": 3}, {"source": "a", "weight": 1}), seed=0
    )
    often = Counter(p.id for p in mixture if p.source == "b")
    assert len(often) == 20 and sorted(often.values()) == [2] * 10 + [3] * 10
    assert Counter(p.id for p in mixture if p.source == "a") == {p.id: 1 for p in POOL[:40]}
    part = manifest["components"][0]
    assert (part["taken"], part["different"], part["passes"], part["share"]) == (50, 20, 2.5, "5/9")
    assert (manifest["rows"], manifest["problems"], manifest["left_out"]) == (90, 60, 0)


def test_epochs_alone_are_so_many_passes_and_weights_reach_as_far_as_they_allow() -> None:
    mixture, _ = mix(POOL, {}, how({"source": "b", "epochs": 2}, {"source": "a", "epochs": 1}), seed=0)
    assert counts(mixture) == {"a": 40, "b": 40}
    parts = ({"source": "a", "weight": 1}, {"source": "b", "weight": 2, "epochs": 4})
    mixture, manifest = mix(POOL, {}, how(*parts), seed=0)
    assert counts(mixture) == {"a": 40, "b": 80}, "without epochs b would be the scarcest: 10 and 20"
    assert [part["weight_share"] for part in manifest["components"]] == ["1/3", "2/3"]
    with pytest.raises(ValueError, match="give weight, count or epochs"):
        how({"source": "a"})
    with pytest.raises(ValueError, match="give either weight or count"):
        how({"source": "a", "weight": 1, "count": 1})


def test_a_cap_is_of_each_source_and_seeded() -> None:
    capped = how({"source": "*", "epochs": 1, "cap": 15})
    mixture, manifest = mix(POOL, {}, capped, seed=0)
    assert counts(mixture) == {"a": 15, "b": 15} == manifest["components"][0]["by_source"]
    assert {p.id for p in mix(POOL, {}, capped, seed=1)[0]} != {p.id for p in mixture}
    alone, _ = mix(POOL, {}, how({"source": "a", "weight": 1, "cap": 15, "epochs": 2}), seed=0)
    assert sorted(Counter(p.id for p in alone).values()) == [2] * 15


def test_the_order_is_seeded_or_from_easy_to_hard() -> None:
    one = how({"source": "*", "weight": 1})
    assert mix(POOL, RATES, one, 0) == mix(POOL, RATES, one, 0)
    assert [p.id for p in mix(POOL, RATES, one, 0)[0]] != [p.id for p in mix(POOL, RATES, one, 1)[0]]
    easy, _ = mix(POOL[:-1], RATES, how({"source": "*", "weight": 1}, order="easy_to_hard"), 0)
    rates = [p.pass_rate or 0.0 for p in easy]
    assert rates == sorted(rates, reverse=True)


def test_easy_to_hard_repeats_no_problem_within_a_pass() -> None:
    twice, _ = mix(POOL[:-1], RATES, how({"source": "a", "epochs": 2}, order="easy_to_hard"), 0)
    half = len(twice) // 2
    assert [p.id for p in twice[:half]] == [p.id for p in twice[half:]] and len({p.id for p in twice}) == half
    rates = [p.pass_rate or 0.0 for p in twice[:half]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("mixture", "said"),
    [
        (how({"source": "c", "weight": 1}), "no problem of source c in the rl split .its sources: a, b"),
        (how({"source": "a", "weight": 1, "band": [0.3, 0.4]}), r"with a pass rate in \[0.3, 0.4\]"),
        (how({"source": "b", "count": 21}), "source b has 20 fitting problems, fewer than 21; lower its"),
        (how({"source": "b", "count": 41, "epochs": 2}), "has 40 rows of fitting problems in 2 epochs, fewer"),
        (how({"source": "b", "weight": 1}, size=30), "lower mix.size to 20"),
        (how({"source": "b", "count": 9}, {"source": "a", "weight": 1}, size=5), "take 9 already"),
    ],
)
def test_what_cannot_be_mixed_is_said_with_the_remedy(mixture: Mix, said: str) -> None:
    with pytest.raises(UserError, match=said):
        mix(POOL, RATES, mixture, 0)


def test_largest_remainders_keep_the_sum() -> None:
    parts = [Fraction(k, 7) * 100 for k in (1, 2, 4)]
    assert largest_remainders(parts) == [14, 29, 57]
    assert largest_remainders([Fraction(1, 2), Fraction(1, 2)]) == [1, 0]


def test_pass_rates_sum_up() -> None:
    rows = [pass_rate_row(p, c, 4) for p, c in zip(problems("a", 4), (0, 1, 2, 4), strict=True)]
    found = summarise(rows)
    assert found["pass_at_1"] == pytest.approx(7 / 16)
    assert found["pass_at_2"] == pytest.approx((0 + 1 / 2 + 5 / 6 + 1) / 4)
    assert "pass_at_8" not in found and (found["never_solved"], found["always_solved"]) == (0.25, 0.25)
    assert found["by_level"]["0"] == {"problems": 2, "pass_rate": 0.5}
    assert found["level_agreement_problems"] == 4
    rows[1]["level"] = None
    assert summarise(rows)["level_agreement_problems"] == 3


def test_agreement_with_levels_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 1, 2]) == pytest.approx(0)
    assert rank_correlation([1, 1], [1, 2]) is None
    # scipy.stats.spearmanr([1, 2, 2, 3, 5], [2, 1, 4, 4, 3]).statistic
    assert rank_correlation([1, 2, 2, 3, 5], [2, 1, 4, 4, 3]) == pytest.approx(0.3947368421)


def test_a_choice_is_seeded_and_keeps_the_order() -> None:
    chosen = seeded_subset(POOL, 10, 0)
    assert chosen == seeded_subset(POOL, 10, 0) != seeded_subset(POOL, 10, 1)
    assert [POOL.index(p) for p in chosen] == sorted(POOL.index(p) for p in chosen)
    assert seeded_subset(POOL, 100, 0) == POOL == seeded_subset(POOL, None, 0)
