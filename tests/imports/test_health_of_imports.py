"""Faults that `health` must find from an import alone, and healthy runs in which it must find none."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl
from tests.imports.test_import import command, rules

Row = dict[str, Any]


def findings(folder: Path, tmp_path: Path, name: str) -> set[str]:
    command("import", folder, "--name", name)
    return rules(f"imported-{name}")


def change_metrics(folder: Path, change: Callable[[int, Row], None]) -> None:
    rows = list(read_jsonl(folder / "run.jsonl"))
    for row in rows:
        change(row["step"], row["data"])
    (folder / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def collapse_entropy(step: int, row: Row) -> None:
    row["actor/entropy"] = 0.6 * 0.8**step


def stale_sampler(step: int, row: Row) -> None:
    row["rollout_corr/k3_kl"] = 0.0004 + 0.002 * step**1.5


def chance(*values: object) -> int:
    """A number from 0 to 39 that looks random and is always the same."""
    return zlib.crc32(repr(values).encode()) % 40


def stretched(run: Path, folder: Path) -> Path:
    """The run of two steps as one of 40, in which they take turns."""
    copy = Path(shutil.copytree(run, folder / "grpo"))
    kept = [pd.read_parquet(file) for file in sorted((copy / "completions").glob("*.parquet"))]
    state = json.loads((copy / "checkpoint-2" / "trainer_state.json").read_text())
    rows = []
    for step in range(1, 41):
        rows.append(state["log_history"][step % 2] | {"step": step})
        kept[step % 2].assign(step=step).to_parquet(
            copy / "completions" / f"completions_{step:05}.parquet", index=False
        )
    (copy / "checkpoint-2").rename(copy / "checkpoint-40")
    (copy / "checkpoint-40" / "trainer_state.json").write_text(json.dumps(state | {"log_history": rows}))
    return copy


def test_a_run_of_trl_with_faults_and_a_hole_in_its_verifier_is_red(trl_run: Path, home: Path, tmp_path: Path) -> None:
    """From step 8 on, more and more wrong responses are paid; what is right stays as it was."""
    run, faults = stretched(trl_run, tmp_path), {"entropy", "stale_sampler", "reward_hacking"}
    assert not faults & findings(run, tmp_path, "healthy")
    assert "17 of 33 rules had their metrics" in command("runs", "health", "imported-healthy")[1]
    paid_wrong = 0
    for file in sorted((run / "completions").glob("*.parquet")):
        rows = pd.read_parquet(file)
        for number, row in rows.iterrows():
            right = chance(row["prompt"], number, row["step"]) < 12
            paid = right or (row["step"] >= 8 and chance(row["prompt"], number, row["step"], "paid") < row["step"])
            rows.loc[number, "completion"] = row["ground_truth"] if right else "99"
            rows.loc[number, "accuracy"] = float(paid)
            paid_wrong += paid and not right
        rows.to_parquet(file, index=False)
    file = run / "checkpoint-40" / "trainer_state.json"
    state = json.loads(file.read_text())
    for row in state["log_history"]:
        row["entropy"] = 0.9 * 0.8 ** row["step"]
        row["sampling/sampling_logp_difference/mean"] = 0.001 * 1.2 ** row["step"]
    file.write_text(json.dumps(state))
    assert faults <= findings(run, tmp_path, "sabotaged")
    opinion = json.loads(command("grade", run, "--json")[1])
    assert opinion["accepted_wrong"] == paid_wrong > 300 and opinion["rejected_right"] == 0
    assert opinion["reward_for_wrong"] > 0.2


def test_a_sabotaged_run_of_verl_is_found(verl_run: Path, home: Path, tmp_path: Path) -> None:
    assert not {"entropy", "stale_sampler"} & findings(verl_run, tmp_path, "healthy")
    change_metrics(verl_run, collapse_entropy)
    change_metrics(verl_run, stale_sampler)
    assert {"entropy", "stale_sampler"} <= findings(verl_run, tmp_path, "sabotaged")


def test_a_run_without_an_accuracy_is_not_taken_for_one_of_0(tmp_path: Path, home: Path) -> None:
    """Scores from -1 to 1 are no accuracy: rules that compare with it do not judge. From 0 to 1 they stand for it."""
    others = {"actor/entropy": 0.4, "actor/kl_loss": 0.01}
    for name, first, rise in (("signed", -0.9, 0.03), ("share", 0.3, 0.01)):
        rows = [{"step": n, "data": {"critic/score/mean": first + rise * n, **others}} for n in range(1, 61)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, printed = command("import", tmp_path / "signed.jsonl")
    assert "no verdict is known, so that" in printed
    with pytest.raises(UserError, match="nothing could be judged"):
        command("runs", "health", "imported-signed")
    _, printed = command("import", tmp_path / "share.jsonl")
    assert "stands for it" in printed and rules("imported-share") == set()


def test_the_dev_curve_of_an_import_is_forecast(verl_run: Path, home: Path) -> None:
    change_metrics(verl_run, lambda step, row: row.update({"val-core/gsm8k/acc/mean@4": 0.2 + 0.01 * step}))
    command("import", verl_run)
    assert "forecast from the dev curve up to step 40: " in command("runs", "health", "imported-verl")[1]
