"""`mathrl runs health FOLDER` on metrics alone: what it could judge, and what not."""

import json
from pathlib import Path

import pytest

import mathrl
from mathrl.cli.runs import health
from mathrl.core.errors import UserError
from mathrl.core.files import write_json


def folder_with(tmp_path: Path, rows: list[dict[str, float]]) -> str:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


def flat_run(*names: str) -> list[dict[str, float]]:
    """80 steps of RL that learns nothing while entropy falls and responses grow."""
    rows = [
        {
            "step": step,
            "reward/accuracy": 0.3,
            "entropy": 0.49 * 0.92**step,
            "response_length": 210.0 + 10 * step,
            "kl": 0.001 * step,
        }
        for step in range(1, 81)
    ]
    return [{name: value for name, value in row.items() if name == "step" or name in names} for row in rows]


ALL = ("reward/accuracy", "entropy", "response_length", "kl")


def test_rows_with_a_reward_are_judged_as_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health(folder_with(tmp_path, flat_run(*ALL)))
    printed = capsys.readouterr().out
    assert ": yellow after 80 steps; " in printed and " rules had their metrics" in printed
    assert all(f"yellow, {rule}, from step" in printed for rule in ("length", "flat", "entropy"))


@pytest.mark.parametrize("rows", [[], [{"step": 1, "actor/kl_loss": 0.1, "critic/rewards/mean": 0.3}]])
def test_metrics_of_other_names_are_not_green(tmp_path: Path, rows: list[dict[str, float]]) -> None:
    with pytest.raises(UserError, match="nothing could be judged"):
        health(folder_with(tmp_path, rows))
    assert mathrl.health_report(tmp_path)["colour"] == "unknown"


def test_a_record_whose_last_row_was_cut_is_judged_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a full disk or a kill leaves it."""
    folder = Path(folder_with(tmp_path, flat_run("reward/accuracy")))
    write_json(folder / "run.json", {"stage": "rl", "key": "k", "status": "failed"})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 99, "rew')
    health(str(folder), as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == len(flat_run("reward/accuracy"))
