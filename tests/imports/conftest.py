"""Real runs of TRL, made here, and of verl, kept in this folder; and one in verl 0.8's documented format."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import made_once

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def trl_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 steps of TRL's GRPOTrainer with 32 responses each, ten seconds, made by the first worker that asks."""
    pytest.importorskip("trl")

    def make(folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
        command = [sys.executable, str(HERE / "make_trl_run.py"), str(folder / "grpo"), "2", "200", "32"]
        subprocess.run(command, check=True, env=environment, capture_output=True)

    return made_once(tmp_path_factory, "trl-run", make) / "grpo"


def unpack_verl_run(name: str, folder: Path) -> Path:
    """60 steps of verl 0.9.1, made by make_verl_run.py with seed 1, without checkpoints and the console log."""
    with tarfile.open(HERE / f"verl-0.9.1-{name}.tar.xz") as kept:
        # Python 3.11.2, Debian's, has no filters yet.
        kept.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the records of a test go."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def verl_metrics(step: int) -> dict[str, float]:
    """A step of a healthy run under verl 0.8's names."""
    return {
        "training/global_step": float(step),
        "actor/entropy": 0.6 - 0.002 * step,
        "actor/kl_loss": 0.0005 * step,
        "actor/grad_norm": 0.4,
        "actor/pg_clipfrac": 0.01,
        "actor/ppo_kl": 0.0003,
        "critic/score/mean": 0.3 + 0.005 * step,
        "response_length/mean": 210.0 + step % 3,
        "response_length/clip_ratio": 0.01,
        "rollout_corr/k3_kl": 0.0004,
        "timing_s/step": 31.0,
    }


@pytest.fixture
def verl_run(tmp_path: Path) -> Path:
    """40 steps in verl 0.8's format: file logger, rollouts, validation, Hydra's configuration, a checkpoint."""
    top = tmp_path / "verl"
    for name in ("rollouts", "validation", ".hydra", "checkpoints/global_step_40/actor"):
        (top / name).mkdir(parents=True)
    rows = [{"step": step, "data": verl_metrics(step)} for step in range(1, 41)]
    (top / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in range(1, 41):
        write_rollouts(top / "rollouts" / f"{step}.jsonl", step, 4, 4)
        if step % 10 == 0:
            write_rollouts(top / "validation" / f"{step}.jsonl", step, 10, 2)
    (top / ".hydra" / "config.yaml").write_text(
        "actor_rollout_ref:\n  actor: {optim: {lr: 2.0e-6}}\n  rollout: {n: 4, temperature: 0.9}\n"
        "data: {max_response_length: 512}\ntrainer: {total_training_steps: 60, project_name: gsm8k}\n"
    )
    (top / "checkpoints" / "global_step_40" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"weights")
    (top / "checkpoints" / "global_step_40" / "data.pt").write_bytes(b"state")
    return top


def write_rollouts(file: Path, step: int, prompts: int, responses: int) -> None:
    """A step's rollouts as verl dumps them: right with a share that rises, each `acc` what the verifier says."""
    rows = []
    for prompt in range(prompts):
        for number in range(responses):
            right = (7 * prompt + 3 * number + step) % 20 < 6 + step // 5
            answer = 40 + prompt if right else 3
            rows.append(
                {
                    "input": f"user\nWhat is 40 + {prompt}?\nassistant\n",
                    "output": f"Adding gives \\boxed{{{answer}}}." + " So it is." * ((prompt + number) % 3),
                    "gts": str(40 + prompt),
                    "score": float(right),
                    "step": step,
                    "acc": right,
                }
            )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
