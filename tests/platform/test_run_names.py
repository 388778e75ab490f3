"""Names of flow runs: generated ones are replaced, a person's stay."""

import pytest
from prefect.utilities.names import generate_slug

from mathrl.tasks.live_progress import was_generated


def test_every_name_that_prefects_server_generates_is_replaced() -> None:
    assert all(was_generated(generate_slug(2)) for _ in range(2000))


@pytest.mark.parametrize(
    "name", ["kappa2-ledos-x", "alpha93-canis-majoris-nebula", "psi-vega", "omega-leonis", "mu4-andromedae-warp"]
)
def test_a_name_that_the_form_in_the_browser_generates_is_replaced(name: str) -> None:
    assert was_generated(name)


@pytest.mark.parametrize(
    "name",
    ["lower-lr", "baseline-rerun", "ablation-kl-a", "beta-sweep", "alpha-high", "mu-test", "new-model", "rl", "my run",
     "spotted-hare again", "fast-rl", "delta-rule-v"],
)  # fmt: skip
def test_a_name_that_a_person_gave_stays(name: str) -> None:
    assert not was_generated(name)
