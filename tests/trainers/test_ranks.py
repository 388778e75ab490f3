"""Two processes make the same gradients, figures and weights as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run_ranks(
    out: Path, processes: int, script: str = "two_ranks.py"
) -> list[dict[str, tuple[torch.Tensor, dict[str, float]]]]:
    out.mkdir()
    shared = os.environ | {
        "PYTHONPATH": str(ROOT), "MATHRL_RENDEZVOUS": str(out), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes),
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name(script)), str(out)]
    ranks = [
        subprocess.Popen(
            command,
            env=shared | {"RANK": str(number), "LOCAL_RANK": str(number)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=150)
        assert rank.returncode == 0, errors
    return [torch.load(out / f"rank-{number}.pt", weights_only=True) for number in range(processes)]


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    (alone,) = run_ranks(tmp_path / "one", 1)
    first, second = run_ranks(tmp_path / "two", 2)
    for name, (gradient, row) in alone.items():
        assert gradient.norm() > 1e-3, name
        assert row["ratio/mean"] != pytest.approx(1, abs=1e-4) or name == "masked"
        for other_gradient, other_row in (first[name], second[name]):
            # Float32 sums in another order.
            assert torch.allclose(other_gradient, gradient, atol=2e-6), name
            assert other_row == pytest.approx(row, rel=1e-4, abs=1e-5), name
    assert 0 < alone["masked"][1]["importance/masked_share"] < 1
    assert torch.equal(first["ppo"][0], second["ppo"][0])


def test_two_processes_train_preferences_as_one_does(tmp_path: Path) -> None:
    (alone,) = run_ranks(tmp_path / "one", 1, "two_ranks_fit.py")
    first, second = run_ranks(tmp_path / "two", 2, "two_ranks_fit.py")
    assert list(alone) == ["dpo", "dpo adapters", "pairs", "steps"]
    for name, (weights, figures) in alone.items():
        assert torch.allclose(first[name][0], weights, atol=1e-5), name
        assert first[name][1] == pytest.approx(figures, rel=1e-4, abs=1e-5), name
        assert torch.equal(second[name][0], first[name][0]), name
        rows = [figures[f"{step}/grad_norm"] for step in range(1, 5)]
        assert min(rows) > 1e-2 and len({figures[f"{step}/loss"] for step in range(1, 5)}) == 4, name
        # Held-out items are fewer than the processes' shares would need, and are counted once each.
        assert first[name][1]["dev/loss"] == pytest.approx(figures["dev/loss"], rel=1e-4)
