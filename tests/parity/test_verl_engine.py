"""rl.engine verl for real: verl's trainer, Ray, FSDP over gloo, checkpoints and merger on a CPU.

Only two things are not verl's own (verl_on_cpu.py): the platform, whose device is the CPU, and the server that samples,
in the place of vLLM's.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.verl import make_workspace, start
from mathrl.core.exit_status import EXIT_STOPPED, EXIT_USER_ERROR
from mathrl.engines.verl_config import VerlFiles, hydra_overrides, verl_settings
from mathrl.params import load_params

ROOT = Path(__file__).parents[2]
VERL = ("rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant", "rl.lr=0.02",
        "rl.optimizer.warmup_steps=0")  # fmt: skip
# What keeps verl small enough for a CPU, and Ray's logical GPUs.
SMALL = (
    "ray_kwargs.ray_init.num_cpus=32", "+ray_kwargs.ray_init.num_gpus=2", "reward.num_workers=1",
    "actor_rollout_ref.rollout.agent.num_workers=1", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.actor.use_torch_compile=false", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.model.use_remove_padding=false", "actor_rollout_ref.actor.strategy=fsdp2",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
)  # fmt: skip
ON_CPU = {
    "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
}
TINY = (
    "model.base.hidden_size=32", "model.base.intermediate_size=64", "model.base.layers=2",
    "model.base.heads=2", "model.base.alphabet=arithmetic", "run.processes=2",
    "sft.steps=12", "sft.tokens_per_step=256", "rl.steps=9", "rl.prompts_per_step=4", "rl.group_size=8",
    "rl.max_tokens=12", "rl.eval_every=4", "rl.eval_samples=1", "rl.checkpoint_every=3", "rl.min_pass_at_8=0",
    "reward.parts=[{type: overlong, options: {max_length: 12, buffer: 12}}]",
)  # fmt: skip
COUNTS = {"sft": 60, "rl": 16, "dev": 6}
# Of every kind of setting: verl's own loader takes them all.
CONFIGURED = (
    (),
    ("rl.policy_loss=gspo", "rl.aggregation=sequence_mean", "rl.kl_coef=0.01", "rl.minibatches=2", "rl.epochs=2"),
    ("rl.policy_loss=cispo", "rl.advantage=group_mean", "rl.importance={kind: masked}", "rl.entropy_coef=0.01"),
    (
        "rl.policy_loss=reinforce",
        "rl.advantage=leave_one_out",
        "rl.kl_coef=0.1",
        "rl.kl_in=reward",
        "rl.kl_estimator=k1",
    ),
    ("rl.policy_loss=dppo_tv", "rl.dual_clip=20", "rl.aggregation=sequence_sum", "rl.importance=null"),
    ("rl.policy_loss=sapo", "rl.aggregation=sequence_mean", "rl.eval_temperature=0", "rl.verl.ray_address=auto"),
    ("rl.optimizer.schedule=cosine", "rl.optimizer.clip_norm=null", "rollout.vllm.tensor_parallel=2"),
)


def check(overrides: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    file = folder / "overrides.json"
    file.write_text(json.dumps(overrides))
    return subprocess.run(
        [sys.executable, "-m", "mathrl.engines.verl_driver", str(file), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_verls_own_loader_takes_the_settings(tmp_path: Path) -> None:
    from mathrl.engines.verl_driver import configuration

    files = VerlFiles(tmp_path / "a model's", tmp_path / "rows", tmp_path / "checkpoints")
    for overrides in CONFIGURED:
        params = load_params(ROOT / "params", overrides=[*VERL, *overrides])
        settings = verl_settings(params, files, longest_prompt=32, resume=None)
        config = configuration(hydra_overrides(settings))
        for name, value in settings.items():
            made: Any = config
            for part in name.lstrip("+").split("."):
                made = made[part]
            assert made == value, name


@pytest.mark.parametrize(
    ("override", "words"), [("actor_rollout_ref.actor.clip=1", "clip"), ("actor_rollout_ref.rollout.mode=sync", "sync")]
)
def test_what_verl_refuses_is_one_line_before_anything_starts(tmp_path: Path, override: str, words: str) -> None:
    params = load_params(ROOT / "params", overrides=[*VERL])
    files = VerlFiles(tmp_path, tmp_path, tmp_path)
    settings = verl_settings(params, files, longest_prompt=32, resume=None)
    done = check(hydra_overrides(settings, [override]), tmp_path)
    assert done.returncode == EXIT_USER_ERROR
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: verl refuses its configuration: ") and words in line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int], list[str]]]:
    """A folder whose run of rl on two ranks was stopped after step 4, and started again to its end; the steps of the
    checkpoints in between, and what still ran then."""
    folder = tmp_path_factory.mktemp("workspace")
    make_workspace(folder, [*VERL, *TINY, f"rl.verl.overrides=[{', '.join(map(repr, SMALL))}]"], COUNTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        for name, value in ON_CPU.items():
            patch.setenv(name, value)
        assert start("sft", folder).wait() == 0
        process = start("rl", folder)
        while process.poll() is None and steps_logged(folder) < 4:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == EXIT_STOPPED
        states = (folder / "home/state").glob("rl-*/checkpoints/global_step_*")
        saved, left = sorted(int(state.name.split("_")[-1]) for state in states), running(folder)
        assert start("rl", folder).wait() == 0
    yield folder, saved, left


def steps_logged(folder: Path) -> int:
    files = sorted((folder / "home/records").glob("rl-*/metrics.jsonl"))
    return len(files[-1].read_text().splitlines()) if files else 0


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "reports/rl/metrics.jsonl").read_text().splitlines()]


def running(folder: Path) -> list[str]:
    """Command lines of processes that have the folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue
    return found


def test_a_stopped_run_leaves_a_checkpoint_and_no_process(trained: Any) -> None:
    _, saved, left = trained
    assert 3 in saved, saved
    assert left == []


def test_the_run_goes_on_with_a_row_per_step(trained: Any) -> None:
    folder, *_ = trained
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == list(range(1, 10))
    names = {"reward/overlong", "reward/accuracy", "response_length", "rollout/zero_variance_share", "verifier/graded",
             "actor_loss", "entropy", "grad_norm", "clip_fraction", "trained_tokens"}  # fmt: skip
    assert all(names <= row.keys() for row in rows), [names - row.keys() for row in rows]
    # The reward is minus the share of 12 tokens that a response takes, and 4 x 8 responses are graded per step.
    assert all(row["response_length"] == pytest.approx(-12 * row["reward/overall"], abs=1e-5) for row in rows)
    assert all(row["verifier/graded"] == 32 for row in rows)
    # What verl itself measures of the same responses.
    for row in rows:
        assert row["verl/critic/score/mean"] == pytest.approx(row["reward/overall"], abs=1e-5)
        assert row["verl/response_length/mean"] == pytest.approx(row["response_length"], abs=1e-5)
    assert [row["step"] for row in rows if "dev/accuracy" in row] == [4, 8, 9]
    record = next(file for file in (folder / "home/records").glob("rl-*/run.json"))
    summary = json.loads(record.read_text())["summary"]
    assert summary["sampled_tokens"] == round(sum(32 * row["response_length"] for row in rows))


def test_the_sampler_has_the_trainers_weights(trained: Any) -> None:
    """verl compares the log-probs that it sampled with its own."""
    for row in rows_of(trained[0]):
        assert row["verl/training/rollout_probs_diff_max"] < 0.05


def test_the_model_is_a_plain_folder_that_has_learned(trained: Any) -> None:
    folder, *_ = trained
    rows = rows_of(folder)
    assert sum(row["reward/overall"] for row in rows[-2:]) > sum(row["reward/overall"] for row in rows[:2]) + 0.2
    config = json.loads((folder / "models/rl/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    weights = (folder / "models/rl/model.safetensors").read_bytes()
    assert weights != (folder / "models/sft/model.safetensors").read_bytes()
    assert not list((folder / "home/state").glob("rl-*/")), "the state is removed on success"
