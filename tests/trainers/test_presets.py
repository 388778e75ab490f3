"""Every preset resolves and trains two steps on a tiny model of its architecture; one with its backend."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mathrl.compose import load_params
from mathrl.compose.experiment import preset_names
from mathrl.core.metrics import without_timings
from mathrl.learners.deepspeed_learner import check_supported
from mathrl.learners.distributed import Ranks
from tests.marks import needs_deepspeed
from tests.trainers.preset_steps import ROOT, architecture, train

PRESETS = [name for name in preset_names(ROOT / "params") if name != "demo"]
PAGES = ROOT / "docs" / "reference" / "presets"


def check_steps(folder: Path) -> None:
    rows = without_timings(folder / "metrics.jsonl")
    assert len(rows) == 2 and all(math.isfinite(row["grad_norm"]) for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows) and rows[-1]["skipped_updates"] == 0


@pytest.mark.parametrize("name", PRESETS)
def test_it_resolves_has_a_page_and_trains_two_steps(name: str, tmp_path: Path) -> None:
    params = load_params(ROOT / "params", preset=name)
    assert params.model_dump() != load_params(ROOT / "params").model_dump()
    assert any(f"`{name}`" in page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert (architecture(params) == "llama") == name.startswith(("deepseekmath", "llama", "perplexity"))
    before, after = train(name, tmp_path, Ranks(torch.device("cpu")))
    check_steps(tmp_path)
    assert torch.isfinite(after).all() and not torch.equal(before, after)


@pytest.mark.engines
@needs_deepspeed
def test_the_backend_of_each_has_what_it_asks_for() -> None:
    checked = 0
    for name in PRESETS:
        params = load_params(ROOT / "params", preset=name)
        if params.training.backend == "deepspeed":
            check_supported(params.rl.optimizer, "rl", params.rl.ema)
            if params.rl.critic is not None:
                check_supported(params.rl.critic.optimizer, "rl.advantage.critic", None)
            checked += 1
    assert checked >= 4


@pytest.mark.engines
@pytest.mark.timeout(900)
@needs_deepspeed
def test_one_trains_with_its_own_deepspeed_section(tmp_path: Path, run_program: Callable[..., str]) -> None:
    script = Path(__file__).with_name("preset_steps.py")
    run_program(script, "dapo-32b", tmp_path)
    check_steps(tmp_path)
