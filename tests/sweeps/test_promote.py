"""A winner's values in params/: what stands there otherwise stays as it is."""

import shutil
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params.loss import LossKl
from mathrl.sweeps.winner import edit_yaml, promote

ROOT = Path(__file__).parents[2]
RL = """# What this project changes.
optimizer:
  adamw_scale: 0.05
temperature: 1.0
max_tokens: 64
prompts_per_step: 32
loss: {low: 0.2, high: 0.28}
"""


def test_comments_order_and_spelling_stay() -> None:
    before = (
        "# why\nlr: 1.0e-3  # high\nkl_coef: 0.0\nparts:\n  - type: accuracy\n    weight: 1.0\n"
        "optimizer:\n  # inner\n  type: muon\nema: null\n\n# end\n"
    )
    after = edit_yaml(before, {"lr": 3e-05, "kl_coef": 0.0123, "parts.0.weight": 2, "clip.low": 0.1}, "rl.yaml")
    assert after == (
        "# why\nlr: 3.0e-05 # high\nkl_coef: 0.0123\nparts:\n  - type: accuracy\n    weight: 2\n"
        "optimizer:\n  # inner\n  type: muon\nema: null\n\n# end\nclip:\n  low: 0.1\n"
    )
    assert edit_yaml(before, {"lr": 1e-3, "optimizer.type": "muon"}, "rl.yaml") == before
    assert "lr: false" in edit_yaml("lr: 0\n", {"lr": False}, "rl.yaml")
    assert edit_yaml("kl: null\nloss: gspo\n", {"kl.coef": 0.1, "loss.low": 0.3}, "rl.yaml") == (
        "kl:\n  coef: 0.1\nloss:\n  type: gspo\n  low: 0.3\n"
    )
    for key in ("lr.high", "parts.7.weight"):
        with pytest.raises(UserError, match="no place in the file"):
            edit_yaml(before, {key: 1}, "rl.yaml")


@pytest.mark.parametrize("file", sorted((ROOT / "params").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_section_file_goes_through_unchanged(file: Path) -> None:
    assert edit_yaml(file.read_text(), {}, file.name) == file.read_text()


def test_the_diff_is_what_git_would_show_and_what_the_schema_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    (tmp_path / "params" / "rl.yaml").write_text(RL)
    monkeypatch.chdir(tmp_path)
    values = {"rl.loss.low": 0.31, "rl.optimizer.adamw_scale": 2.5e-05, "rl.kl.coef": 0.0, "rl.max_tokens": 60}
    diff = promote(values)
    changed = [line for line in diff.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-  adamw_scale: 0.05",
        "+  adamw_scale: 2.5e-05",
        "-max_tokens: 64",
        "+max_tokens: 60",
        "-loss: {low: 0.2, high: 0.28}",
        "+loss: {low: 0.31, high: 0.28}",
        "+kl:",
        "+  coef: 0.0",
    ]
    assert diff.startswith("--- a/params/rl.yaml\n+++ b/params/rl.yaml\n")
    rl = load_params().rl
    assert (rl.loss.low, rl.optimizer.adamw_scale, rl.kl, rl.max_tokens) == (0.31, 2.5e-05, LossKl(coef=0.0), 60)
    assert promote(values) == ""
    before = (tmp_path / "params" / "rl.yaml").read_text()
    with pytest.raises(UserError, match=r"loss\.low"):
        promote({"rl.kl.coef": 0.1, "rl.loss.low": 1.5})
    assert (tmp_path / "params" / "rl.yaml").read_text() == before


def test_the_winner_of_a_presets_study_goes_into_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params" / "presets").mkdir()
    (tmp_path / "params" / "presets" / "mine.yaml").write_text(
        "help: mine\ndata: gsm8k\nmodel: qwen2.5-0.5b\nrl:\n  optimizer:\n    lr: 1.0e-6  # as published\n"
    )
    diff = promote({"rl.optimizer.lr": 3e-06, "rl.loss.high": 0.3}, preset="mine")
    assert "+++ b/params/presets/mine.yaml" in diff and diff.count("+++") == 1
    assert "+    lr: 3.0e-06 " in diff and "# as published" in diff, "the comment stays"
    rl = load_params(preset="mine").rl
    assert (rl.optimizer.lr, rl.loss.high) == (3e-06, 0.3) and load_params().rl == load_params(ROOT / "params").rl
    packages = promote({"rl.optimizer.lr": 3e-06}, preset="qwen2.5-0.5b-gsm8k")
    assert "+++ b/params/rl.yaml" in packages, "a preset of the package is the same for everybody"
