"""Two or four processes make the same gradients, figures and weights as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
Run = Callable[[Path, dict[Path, int]], None]


def found(run_ranks: Run, out: Path, program: str, *worlds: int) -> list[list[dict[str, Any]]]:
    """What each rank of each world wrote."""
    run_ranks(HERE / program, {out / str(ranks): ranks for ranks in worlds})
    return [
        [torch.load(out / str(ranks) / f"rank-{rank}.pt", weights_only=True) for rank in range(ranks)]
        for ranks in worlds
    ]


def test_two_and_four_processes_compute_what_one_does(tmp_path: Path, run_ranks: Run) -> None:
    (alone,), two, four = found(run_ranks, tmp_path, "two_ranks.py", 1, 2, 4)
    many = [*two, *four]
    metrics = alone.pop("metrics")
    assert 0 < metrics["rollout/repetition"] < 1 and 0 < metrics["reward/overall"] < 1
    for rank in many:
        assert rank.pop("metrics") == metrics, "to the last bit"
    for name, (gradient, row) in alone.items():
        assert gradient.norm() > 1e-3, name
        assert row["ratio/mean"] != pytest.approx(1, abs=1e-4) or name == "masked"
        for other_gradient, other_row in (rank[name] for rank in many):
            # Float32 sums in another order.
            assert torch.allclose(other_gradient, gradient, atol=2e-6), name
            assert other_row == pytest.approx(row, rel=1e-4, abs=1e-5), name
    assert 0 < alone["masked"][1]["importance/masked_share"] < 1
    for ranks in (two, four):
        assert all(torch.equal(rank["ppo"][0], ranks[0]["ppo"][0]) for rank in ranks)


def test_two_processes_train_preferences_as_one_does(tmp_path: Path, run_ranks: Run) -> None:
    (alone,), (first, second) = found(run_ranks, tmp_path, "two_ranks_fit.py", 1, 2)
    assert list(alone) == ["dpo", "dpo adapters", "pairs", "steps"]
    for name, (weights, figures) in alone.items():
        assert torch.allclose(first[name][0], weights, atol=1e-5), name
        assert first[name][1] == pytest.approx(figures, rel=1e-4, abs=1e-5), name
        assert torch.equal(second[name][0], first[name][0]), name
        rows = [figures[f"{step}/grad_norm"] for step in range(1, 5)]
        assert min(rows) > 1e-2 and len({figures[f"{step}/loss"] for step in range(1, 5)}) == 4, name
        # Held-out items are fewer than the processes' shares would need, and are counted once each.
        assert first[name][1]["dev/loss"] == pytest.approx(figures["dev/loss"], rel=1e-4)
