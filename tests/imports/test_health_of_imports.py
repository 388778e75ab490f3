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
from tests.imports.conftest import unpack_verl_run
from tests.imports.test_import import command, rewrite, rules

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


def growing_lengths(step: int, row: Row) -> None:
    row["response_length/mean"] = 210.0 * 1.04**step


def chance(*values: object) -> int:
    """A number from 0 to 39 that looks random and is always the same."""
    return zlib.crc32(repr(values).encode()) % 40


def stuck(row: Row) -> None:
    """The share of right answers stays where it was at first."""
    right = chance(row["input"], row["output"], row["step"]) < 12
    answer = row["gts"] if right else "99"
    row |= {"output": f"Adding gives \\boxed{{{answer}}}.", "score": float(right), "acc": right}


def paid_for_length(row: Row) -> None:
    """What is paid is length, from step 8 on; what is right stays as it was."""
    stuck(row)
    if row["step"] >= 8:
        long = chance(row["input"], row["output"], row["step"], "long") < row["step"]
        row["output"] = "Let me see. " * (40 if long else 1) + row["output"]
        row |= {"score": float(long), "acc": long}


@pytest.mark.parametrize(
    ("rule", "metrics", "rollouts"),
    [
        ("entropy", collapse_entropy, None),
        ("stale_sampler", stale_sampler, None),
        ("length", growing_lengths, stuck),
        ("reward_hacking", None, paid_for_length),
    ],
)
def test_a_sabotaged_run_of_verl_is_found(
    verl_run: Path,
    home: Path,
    tmp_path: Path,
    rule: str,
    metrics: Callable[[int, Row], None] | None,
    rollouts: Callable[[Row], None] | None,
) -> None:
    assert rule not in findings(verl_run, tmp_path, "healthy")
    copy = Path(shutil.copytree(verl_run, tmp_path / "sabotaged"))
    if metrics:
        change_metrics(copy, metrics)
    if rollouts:
        rewrite(copy, rollouts)
    assert rule in findings(copy, tmp_path, "sabotaged")


def test_a_run_of_trl_with_a_hole_in_its_verifier_is_found(trl_run: Path, home: Path, tmp_path: Path) -> None:
    """From step 8 on, more and more wrong responses are paid; what is right stays as it was."""
    hacked, paid_wrong = Path(shutil.copytree(trl_run, tmp_path / "hacked")), 0
    for file in sorted((hacked / "completions").glob("*.parquet")):
        rows = pd.read_parquet(file)
        for number, row in rows.iterrows():
            right = chance(row["prompt"], number, row["step"]) < 12
            paid = right or (row["step"] >= 8 and chance(row["prompt"], number, row["step"], "paid") < row["step"])
            rows.loc[number, "completion"] = row["ground_truth"] if right else "99"
            rows.loc[number, "accuracy"] = float(paid)
            paid_wrong += paid and not right
        rows.to_parquet(file, index=False)
    assert "reward_hacking" in findings(hacked, tmp_path, "hacked")
    opinion = json.loads(command("grade", hacked, "--json")[1])
    assert opinion["accepted_wrong"] == paid_wrong > 1000 and opinion["rejected_right"] == 0
    assert opinion["reward_for_wrong"] > 0.2
    _, printed = command("runs", "health", "imported-hacked")
    assert "accuracy of the same responses by mathrl's verifier" in printed


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("entropy", lambda step: {"entropy": 0.9 * 0.8**step}),
        ("stale_sampler", lambda step: {"sampling/sampling_logp_difference/mean": 0.001 * 1.2**step}),
    ],
)
def test_a_sabotaged_copy_of_a_real_run_of_trl_is_found(
    trl_run: Path, home: Path, tmp_path: Path, rule: str, changes: Callable[[int], Row]
) -> None:
    assert rule not in findings(trl_run, tmp_path, "healthy"), "a healthy run has it not"
    copy = Path(shutil.copytree(trl_run, tmp_path / "copy"))
    file = copy / "checkpoint-40" / "trainer_state.json"
    state = json.loads(file.read_text())
    for row in state["log_history"]:
        row |= changes(row["step"])
    file.write_text(json.dumps(state))
    assert rule in findings(copy, tmp_path, "sabotaged")


def test_a_real_run_of_verl_that_hacks_its_reward_is_found(home: Path, tmp_path: Path) -> None:
    hacked = unpack_verl_run("hacked", tmp_path)
    assert {"reward_hacking", "reward_alone", "collapse", "length", "truncated"} <= findings(hacked, tmp_path, "hacked")
    opinion = json.loads(command("grade", hacked, "--json")[1])
    # Every response of four characters that is wrong was paid for.
    assert opinion["accepted_wrong"] == 1783 and opinion["rejected_right"] == 0 and opinion["reward_for_wrong"] > 0.3


@pytest.mark.parametrize(("rule", "change"), [("entropy", collapse_entropy), ("stale_sampler", stale_sampler)])
def test_a_sabotaged_copy_of_a_real_run_of_verl_is_found(
    home: Path, tmp_path: Path, rule: str, change: Callable[[int, Row], None]
) -> None:
    run = unpack_verl_run("healthy", tmp_path)
    assert findings(run, tmp_path, "real") == set(), "a healthy run is green"
    change_metrics(run, change)
    assert rule in findings(run, tmp_path, "sabotaged")


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
