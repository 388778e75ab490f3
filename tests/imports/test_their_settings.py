"""The configuration of another trainer in the section rl: what is not taken over is named."""

from pathlib import Path
from typing import Any

import pytest

from mathrl.imports.foreign_run import ForeignRun, read_run
from mathrl.imports.write_record import parameters
from mathrl.params.other_trainers import parameter_names


def test_every_argument_of_trl_is_taken_over_or_named(trl_run: Path) -> None:
    """Another value of a field changes the section rl or is in the list of what was not taken over."""
    plain = {name: value for name, value in read_run(trl_run).config.items() if not isinstance(value, list | tuple)}
    assert len(plain) > 150 and {"epsilon_high", "delta", "sync_ref_model", "vespo_k_pos"} <= plain.keys()

    def taken(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return parameters(ForeignRun(trl_run, "TRL", config=config), [], [{"step": 1}])

    def another(value: Any) -> Any:
        if isinstance(value, bool | None):
            return not value
        return f"{value}x" if isinstance(value, str) else 2 * value or 0.5

    known = {row.name for row in parameter_names() if row.trainer == "TRL"}
    there = {name: value for name, value in plain.items() if name not in known}
    assert taken(there)[1] == there
    beside = {name: plain[name] for name in ("loss_type", "steps_per_generation", "gradient_accumulation_steps")}
    for name in plain.keys() & known - {"reward_weights"}:  # they weigh the rollouts' rewards: test_formats.py
        before, _ = taken(beside | {"beta": 0.1, name: plain[name]})
        section, unused = taken(beside | {"beta": 0.1, name: another(plain[name])})
        assert section != before or name in unused, f"{name}={another(plain[name])} is dropped"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"loss_type": "grpo", "epsilon": 0.1, "delta": 3.0},
         {"type": "clip", "aggregation": "sequence_mean", "low": 0.1, "high": 0.1, "dual": 3.0}),
        ({"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}, {"type": "clip", "low": 0.2, "high": 0.28}),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4},
         {"type": "gspo", "aggregation": "sequence_mean", "low": 3e-4, "high": 3e-4}),
        ({"loss_type": "cispo", "epsilon": 0.2, "epsilon_high": 5.0}, {"type": "cispo", "low": 1, "high": 4.0}),
        ({"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.2},
         {"type": "sapo", "temperatures": [1.0, 1.2]}),
        ({"loss_type": "dr_grpo", "top_entropy_quantile": 0.2}, {"aggregation": "sequence_sum", "top_entropy": 0.2}),
    ],
)  # fmt: skip
def test_a_loss_of_trl_is_ours(tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]) -> None:
    rl, unused = parameters(ForeignRun(tmp_path, "TRL", config=config), [], [{"step": 1}])
    assert rl["loss"] | expected == rl["loss"] and not unused


def test_updates_of_trl_are_counted_in_gradient_accumulation_steps(tmp_path: Path) -> None:
    config = {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "scale_rewards": "none"}
    config |= {"mask_truncated_completions": True, "beta": 0.0, "loss_type": "luspo", "sync_ref_model": True}
    rl, unused = parameters(ForeignRun(tmp_path, "TRL", config=config), [], [{"step": 1}])
    assert (rl["minibatches"], rl["advantage"]["type"], rl["truncated"], rl["kl"]) == (2, "dr_grpo", "mask", None)
    assert unused == {"loss_type": "luspo", "sync_ref_model": True}
    uneven = {"steps_per_generation": 8, "gradient_accumulation_steps": 3}
    assert parameters(ForeignRun(tmp_path, "TRL", config=uneven), [], [{"step": 1}])[1] == uneven
