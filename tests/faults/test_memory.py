"""Out of memory, by a real limit on the process: the part is named, or micro-batches are halved."""

import importlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.errors import OutOfMemory, UserError, is_out_of_memory, memory_part
from mathrl.models.scores import make_scorer
from mathrl.params.run import Judge
from mathrl.params.train import Rl
from mathrl.trainers.judges import reward_model_judge
from tests.trainers import supervised_traces

ROOT = Path(__file__).parents[2]


def test_halved_micro_batches_give_the_same_weights_and_log_probs(tmp_path: Path) -> None:
    script = Path(__file__).with_name("memory_limited.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    assert "out of memory for the activations of a micro-batch (tried to allocate" in results["error"]
    assert "lower sft.tokens_per_microbatch (now 12000)" in results["error"]
    sft = [line for line in done.stdout.splitlines() if line.startswith("halved")]
    assert len(sft) == 2 and sft[0] != "halved 0 times" and sft[1] == "halved 0 times"
    assert "sft: out of memory, continuing with micro-batches of 6000 tokens" in done.stderr
    # The order of sums differs; a step moves weights by 1e-2.
    assert torch.allclose(results["halved"], results["whole"], atol=1e-6)
    # The log-probs of a reference, which need no gradient.
    assert "out of memory for the log-probs of the reference (tried to allocate" in results["kl error"]
    assert "lower rl.tokens_per_microbatch (now 24000)" in results["kl error"]
    kl = [line for line in done.stdout.splitlines() if line.startswith("KL")]
    assert len(kl) == 2 and kl[0] == "KL: halved 0 times" and kl[1] != kl[0]
    assert torch.allclose(results["kl halved"], results["kl whole"], atol=1e-5)
    assert results["kl whole"].std() > 0.1


def test_the_innermost_part_is_named_and_other_errors_pass() -> None:
    message = r"out of memory for the logits \(.*1125899906842624.*\): do less"
    with pytest.raises(OutOfMemory, match=message), memory_part("activations", "no"):  # noqa: SIM117
        with memory_part("logits", "do less"):
            torch.empty(2**48)  # a petabyte, more than any machine has
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), memory_part("logits", "do less"):
        torch.ones(2) @ torch.ones(3)
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(ValueError("out of memory"))


def test_parts_beside_the_update_are_named(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")

    model, sampler = small.policy()
    with monkeypatch.context() as patched:
        patched.setattr("mathrl.trainers.open_rl.copy_model", full)
        with pytest.raises(OutOfMemory, match=r"reference's weights .* set rl\.lora, or rl\.kl to null"):
            small.run(Rl(steps=1, kl={"coef": 0.1}))
    with monkeypatch.context() as patched:
        patched.setattr("mathrl.models.scores.merged_state", full)
        with pytest.raises(OutOfMemory, match=r"critic or reward model .* set training\.backend"):
            make_scorer(model)
    scorer = make_scorer(model)
    monkeypatch.setattr("mathrl.trainers.judges.scores_after", full)
    judge = reward_model_judge(scorer, Judge(), 2, 4096)
    with pytest.raises(OutOfMemory, match=r"reward model's scores .* lower rl\.tokens_per_microbatch"):
        judge(small.rollouts(model, sampler))


def test_halving_within_deepspeed_is_refused() -> None:
    with pytest.raises(UserError, match="on_out_of_memory halve needs backend torch"):
        load_params(ROOT / "params", overrides=["training.backend=deepspeed", "training.on_out_of_memory=halve"])


GAE = {"type": "gae", "critic": {}}
UPDATE = "activations of a micro-batch"
# The pass that memory does not hold: the module and function that computes it, and how the error names it.
RL_PASSES = {
    "old log-probs": ("scores.response_logprobs", "log-probs of the policy", {"importance": {"when": "always"}}),
    "experts": ("scores.response_logprobs", "log-probs of the policy", {"imitation": "luffy", "max_tokens": 24}),
    "reference": ("scores.response_logprobs", "log-probs of the reference", {"kl": {"coef": 0.1}}),
    "probe": ("scores.response_logprobs", "log-probs of the reference", {"kl": {"type": "probe", "groups": 2}}),
    "teacher": ("scores.response_logprobs", "log-probs of the teacher", {"advantage": "distillation"}),
    "teacher's tokens": (
        "scores.top_tokens",
        "log-probs of the teacher",
        {"advantage": "distillation", "loss": "forward_kl"},
    ),
    "entropies": ("scores.response_logprobs", "entropies of the policy", {"loss": {"top_entropy": 0.2}}),
    "values": ("scores.token_scores", "critic's values", {"advantage": GAE}),
    "the critic's update": ("critic.micro_batch_loss", UPDATE, {"advantage": GAE}),
    "update": ("policy_update.micro_batch_loss", UPDATE, {}),
}
ON_PAIRS_PASSES = {
    "sft": ("sft.response_logprobs", UPDATE, 0),
    "sft, dev": ("sft.response_logprobs", "outputs of the dev items", 4),
    "dpo": ("preference.response_logprobs", "log-probs of the reference", 0),
    "dpo, update": ("preference.pair_loss", UPDATE, 0),
    "reward_model": ("reward_model.items_loss", UPDATE, 0),
    "reward_model, all": ("reward_model._item_scores", "scores of all items", 0),
}


def fills_memory(monkeypatch: pytest.MonkeyPatch, function: str, passes: int = 0) -> None:
    """After so many calls the function asks for more memory than any machine has."""
    module, name = f"mathrl.trainers.{function}".rsplit(".", 1)
    real, calls = getattr(importlib.import_module(module), name), itertools.count()

    def full(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs) if next(calls) < passes else torch.empty(2**48)

    monkeypatch.setattr(f"{module}.{name}", full)


@pytest.mark.parametrize("name", RL_PASSES)
def test_every_pass_of_rl_is_named_with_its_parameter(name: str, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, part, settings = RL_PASSES[name]
    fills_memory(monkeypatch, function)
    helpers = {"teacher": small.policy(seed=8)[0]} if name.startswith("teacher") else {}
    solved = [problem.with_(solution="1") for problem in small.PROBLEMS]
    with pytest.raises(OutOfMemory, match=rf"memory for the {part} \(.*lower rl.tokens_per_microbatch \(now 321\)"):
        small.run(small.short_rl(steps=1, tokens_per_microbatch=321, **settings), problems=solved, **helpers)


@pytest.mark.parametrize("case", ["SFT", "DPO", "a reward model", "GRPO", "PPO"])
def test_the_optimizers_states_are_named_with_their_section(
    case: str, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mathrl.learners.optimizer.OptimizerSet.step", lambda *_: torch.empty(2**48))
    sections = {
        "SFT": "sft",
        "DPO": "dpo",
        "GRPO": "rl",
        "PPO": "rl.advantage.critic",
        "a reward model": "reward_model",
    }
    with pytest.raises(
        OutOfMemory, match=rf"for the optimizer states \(.* or {sections[case]}\.lora, or take a smaller"
    ):
        if case in ("GRPO", "PPO"):
            small.run(small.short_rl(steps=1, **({"advantage": GAE} if case == "PPO" else {})))
        supervised_traces.CASES[case](tmp_path)


@pytest.mark.parametrize("name", ON_PAIRS_PASSES)
def test_every_pass_of_other_training_is_named_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, part, passes = ON_PAIRS_PASSES[name]
    fills_memory(monkeypatch, function, passes)
    kind = name.split(",")[0]
    case = {"sft": "SFT", "dpo": "DPO", "reward_model": "a reward model"}[kind]
    with pytest.raises(OutOfMemory, match=rf"for the {part} \(.*lower {kind}.tokens_per_microbatch \(now 40\)"):
        supervised_traces.CASES[case](tmp_path)
