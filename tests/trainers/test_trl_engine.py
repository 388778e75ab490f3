"""TRL trains in the stages sft and rl: an ended run gives the same bits, its metrics are mathrl's, the model learns."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import EXIT_STOPPED

HERE = Path(__file__).parent
TRL = ("rl.engine=trl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.advantage.eps=1e-4")
SFT = ("sft.optimizer.type=adamw", "sft.optimizer.lr=0.003", "run.processes=1")
EXACT = ("model.precision=float32", "sft.optimizer.weight_decay=0")
SUMMARY = {"loss": "loss", "dev/loss": "dev/loss", "tokens": "tokens_seen"}
CONFIGURED = (
    ("rl.prompts_per_step=8", "rl.group_size=4"),
    ("rl.prompts_per_step=8", "rl.group_size=4", "rl.minibatches=2", "rl.epochs=3", "rl.tokens_per_microbatch=512"),
    ("rl.loss=gspo", "rl.loss.aggregation=sequence_mean", "rl.kl.coef=0.01", "rl.loss.dual=3"),
    ("rl.loss=cispo", "rl.loss.low=1", "rl.advantage=dr_grpo", "rl.truncated=mask", "rl.loss.entropy_coef=0.01"),
)


@pytest.fixture(scope="module")
def runs(make_workspace: Callable[..., Any]) -> Any:
    """The workspaces of a whole run, a killed one, a stopped one and of SFT by mathrl's loop, and what the program
    printed."""
    # The reward is easy to raise: responses become shorter.
    learning = ("rl.optimizer.lr=0.02", "rl.prompts_per_step=8", "rl.group_size=8", "rl.minibatches=2")
    workspaces = [make_workspace(*TRL, *SFT, *learning, "sft.engine=trl") for _ in range(3)]
    workspaces.append(make_workspace(*SFT, *EXACT))
    done = subprocess.run(
        [sys.executable, HERE / "trl_runs.py", *(each.folder for each in workspaces)],
        input=json.dumps([[*TRL, *overrides] for overrides in CONFIGURED]),
        env=workspaces[0].variables() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_STOPPED, done.stderr[-6000:]
    return *workspaces, json.loads(done.stdout.splitlines()[-1])  # DeepSpeed, where it is installed, prints before


def test_a_killed_run_resumes_to_the_same_bits(runs: Any) -> None:
    whole, killed, *_, printed = runs
    assert printed["rl"] == ["finished", "killed", "finished"]
    assert killed.output("rl") == whole.output("rl")
    assert not list((killed.folder / "home/state").glob("rl-*/")), "the state is removed on success"
    weights, rows = whole.output("rl")
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert weights != (whole.folder / "models/sft/model.safetensors").read_bytes()
    resolved = {"rollout.engine": "torch", "rl.importance": None}
    assert whole.record("rl")["resolved"] == resolved, "what TRL samples with, and does not correct for"


def test_a_stopped_run_leaves_a_checkpoint(runs: Any) -> None:
    """After SIGTERM at step 4: exit status 75, which the fixture has checked, and a whole checkpoint beyond step 3."""
    stopped = runs[2]
    assert stopped.record("rl")["status"] == "stopped" and not (stopped.folder / "models/rl").exists()
    updates = [int(file.parent.name.split("-")[1]) for file in stopped.folder.glob("home/state/rl-*/*/mathrl.json")]
    assert max(updates) == 10, "two updates per step: step 5"


def test_sft_resumes_to_the_same_bits(runs: Any) -> None:
    whole, killed, *_, printed = runs
    assert printed["sft"] == ["finished", "killed", "finished", "finished"]
    assert killed.output("sft") == whole.output("sft")
    assert not list((killed.folder / "home/state").glob("sft-*/")), "the state is removed on success"
    rows = whole.output("sft")[1]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows if "dev/loss" in row] == [4, 8, 12]
    assert rows[-1]["dev/loss"] < rows[3]["dev/loss"] - 0.1 and rows[-1]["loss"] < rows[0]["loss"] - 0.1
    record = whole.record("sft")
    assert record["summary"] == {name: rows[-1][part] for name, part in SUMMARY.items()}
    card = (killed.folder / "models/sft/README.md").read_text()
    assert f"loss on dev demonstrations {rows[-1]['dev/loss']:.4f}" in card


def test_sft_by_trl_on_two_ranks_is_sft_by_mathrl(runs: Any, make_workspace: Callable[..., Any]) -> None:
    """The same batches, loss and updates, whatever the ranks and micro-batches; float32 rounds a loss of 3 by less."""
    two_ranks = make_workspace(
        *SFT, *EXACT, "sft.engine=trl", "run.processes=2", "run.device=cpu", "sft.tokens_per_microbatch=64"
    )
    two_ranks.python = sys.executable  # transformers must find accelerate
    two_ranks.run("sft")
    own, same = runs[3].output("sft")[1], two_ranks.output("sft")[1]
    for mine, theirs in zip(own, same, strict=True):
        assert theirs["tokens_seen"] == mine["tokens_seen"] and theirs["lr_factor"] == pytest.approx(mine["lr_factor"])
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=3e-5)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-3)
        assert theirs.get("dev/loss", 0) == pytest.approx(mine.get("dev/loss", 0), abs=3e-5)
    changes = [abs(row["loss"] - before["loss"]) for before, row in pairwise(own)]
    assert min(changes) > 1e-4, "a batch too early or too late is seen"


def test_the_reward_rises_and_every_figure_has_mathrls_name(runs: Any) -> None:
    whole, *_ = runs
    rows = whole.output("rl")[1]
    # Responses of a random policy, each at most 12 tokens: 0.1 is five standard errors of a mean of 64 x 2.
    assert sum(row["reward/overall"] for row in rows[-2:]) > sum(row["reward/overall"] for row in rows[:2]) + 0.2
    names = {"reward/overlong", "reward/accuracy", "response_length", "rollout/zero_variance_share", "verifier/graded",
             "actor_loss", "entropy", "grad_norm", "lr_factor", "clip_fraction", "trained_tokens"}  # fmt: skip
    assert all(names <= row.keys() for row in rows)
    assert all(row["reward/overlong"] == pytest.approx(row["reward/overall"], abs=1e-6) for row in rows)
    # The reward is minus the share of 12 tokens that a response takes.
    assert all(row["response_length"] == pytest.approx(-12 * row["reward/overall"], abs=1e-6) for row in rows)
    assert [row["step"] for row in rows if "dev/accuracy" in row] == [4, 8, 9]
    record = whole.record("rl")
    assert record["status"] == "finished" and record["summary"].keys() == {"dev/accuracy", "sampled_tokens"}
    assert record["summary"]["sampled_tokens"] == round(sum(64 * row["response_length"] for row in rows))
    # mathrl's schedule: the first of ten warm-up steps, times what is left of 18 updates at the last one.
    assert rows[0]["lr_factor"] == pytest.approx(2 / 10 * 17 / 18)


def test_the_model_is_a_plain_folder(runs: Any) -> None:
    whole, *_ = runs
    start, trained = (header(whole.folder / f"models/{name}/model.safetensors") for name in ("sft", "rl"))
    assert trained == start and {tensor["dtype"] for tensor in trained.values()} == {"F32"}
    config = json.loads((whole.folder / "models/rl/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]


def header(file: Path) -> dict[str, Any]:
    """Names, types and shapes of a safetensors file: its first eight bytes are the length of a JSON header."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return {name: tensor for name, tensor in json.loads(content[8 : 8 + length]).items() if name != "__metadata__"}


def test_trls_own_configuration_takes_the_arguments(runs: Any) -> None:
    first, second, third, fourth = runs[-1]["configured"]
    assert first == {
        "generation_batch_size": 32, "steps_per_generation": 1, "gradient_accumulation_steps": 1, "max_steps": 50,
    }  # fmt: skip
    # 16 responses per update, 4 of 128 tokens per micro-batch; 3 epochs of 2 updates in each of 50 steps.
    assert second == {
        "generation_batch_size": 32, "steps_per_generation": 8, "gradient_accumulation_steps": 4, "max_steps": 300,
    }  # fmt: skip
    assert third["generation_batch_size"] == fourth["generation_batch_size"] == 512
