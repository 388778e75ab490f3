"""The search space against the schema, values on their way to an override and back, a winner's in params/."""

import math
import os
import shutil
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import optuna
import pytest

from mathrl.compose import load_params, write_params
from mathrl.core.errors import UserError
from mathrl.params.form import form_overrides, section_form
from mathrl.params.loss import LossKl
from mathrl.params.sweep import Categorical, Integer, LogUniform, Sweep, Uniform, ZeroOrLog
from mathrl.sweeps.space import check_space, decode, distribution, encode, floor, override, values_of
from mathrl.sweeps.winner import edit_yaml, promote
from mathrl.tasks.workspace import with_study

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"
KL = ZeroOrLog(kind="zero_or_log", low=1e-3, high=1e-1, zero_share=1 / 3)


def sweep(space: dict[str, Any], **more: Any) -> Sweep:
    return Sweep.model_validate({"space": space, **more})


def refusal(space: dict[str, Any], **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_space(sweep(space, **more), PARAMS)
    return str(caught.value)


def test_the_demo_space_fits_and_trial_0_has_the_present_values() -> None:
    section = load_params(PARAMS).sweep
    present, rl = check_space(section, PARAMS), load_params(PARAMS, overrides=section.set).rl
    assert rl.minibatches >= 2, "with one update a batch the ratio is 1 and clipping does nothing"
    assert present == {
        "rl.optimizer.lr": rl.optimizer.lr,
        "rl.kl.coef": 0.0,
        "rl.loss.low": rl.loss.low,
        "rl.loss.high": rl.loss.high,
    }


def test_every_wrong_key_and_bound_is_named_at_once() -> None:
    said = refusal(
        {
            "rl.temperatur": {"kind": "zero_or_log", "low": 1e-3, "high": 1},
            "rl.loss.low": {"kind": "uniform", "low": 0.1, "high": 1.5},
            "sft.optimizer.lr": {"kind": "log", "low": 1e-4, "high": 1e-2},
            "rl.temperature": {"kind": "uniform", "low": 1.1, "high": 1.5},
            "run.seed": {"kind": "int", "low": 0, "high": 9},
            "rl.advantage": {"kind": "choice", "values": ["grpo", "gprs"]},
        }
    )
    for part in (
        "rl.temperatur: no parameter 'temperatur' there (did you mean temperature?)",
        "rl.loss.low: ",
        "less than or equal to 1, found 1.5",
        "sft.optimizer.lr: a trial is an RL run",
        "present value 1.0",
        "run.seed: trials that differ in it cannot be compared",
        "no type 'gprs'",
    ):
        assert part in said, said


def test_other_spaces_that_are_refused() -> None:
    assert "nothing is varied" in refusal({})
    assert "write section.key=value" in refusal({"rl": {"kind": "int", "low": 1, "high": 2}})
    assert "present value 16" in refusal({"rl.group_size": {"kind": "int", "low": 5, "high": 21, "step": 4}})
    zero_variance = {"rl.loss.skip_zero_variance": {"kind": "choice", "values": [1, 0]}}
    assert "present value True" in refusal(zero_variance)
    with pytest.raises(UserError, match=r"sweep\.space=.*low 0\.1 must be below high 0\.01"):
        load_params(PARAMS, overrides=["sweep.space={rl.optimizer.lr: {kind: log, low: 0.1, high: 0.01}}"])


def test_whole_numbers_choices_and_lists_may_be_varied() -> None:
    space = {
        "rl.group_size": {"kind": "int", "low": 4, "high": 32, "step": 4},
        "rl.advantage": {"kind": "choice", "values": ["grpo", "dr_grpo"]},
        "rl.temperature": {"kind": "uniform", "low": 0.7, "high": 1.2},
        "reward.parts.0.weight": {"kind": "uniform", "low": 0.5, "high": 2},
        "rl.ema": {"kind": "choice", "values": [None, 0.9, 0.95]},
    }
    present = check_space(sweep(space), PARAMS)
    assert present["rl.group_size"] == 16 and present["reward.parts.0.weight"] == 1.0
    assert present["rl.advantage"] == "grpo" and present["rl.ema"] == 0.9


def test_a_sweep_must_end_and_must_not_see_the_test_problems() -> None:
    for words, part in (
        (["sweep.trials=null"], "set trials or hours"),
        (["sweep.dev=data/curated/test.jsonl"], "must not be seen by trials"),
        (["sweep.data=[data/curated/test.jsonl]"], "must not be seen by trials"),
    ):
        with pytest.raises(UserError, match=part):
            load_params(PARAMS, overrides=words)
    assert load_params(PARAMS, overrides=["sweep.trials=null", "sweep.hours=2"]).sweep.hours == 2


def test_zero_has_its_share_of_the_logarithmic_range() -> None:
    # A third of ln(high / floor) lies below low: ln 1e-1/1e-4 = 3 ln 10, of which ln 10 below 1e-3.
    assert floor(KL) == pytest.approx(1e-4, rel=1e-12)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [study.ask({"kl": distribution(KL)}).params["kl"] for _ in range(2000)]
    values = [decode(KL, each) for each in drawn]
    zeros = sum(value == 0 for value in values) / len(values)
    assert zeros == pytest.approx(1 / 3, abs=0.035)  # 3.3 standard errors
    assert all(value == 0 or 1e-3 <= value <= 1e-1 for value in values)
    middle = sum(0 < value < 1e-2 for value in values) / len(values)
    assert middle == pytest.approx(1 / 3, abs=0.035)
    assert decode(KL, encode(KL, 0.0)) == 0.0 and encode(KL, 0.02) == 0.02
    assert floor(KL) < encode(KL, 0.0) < KL.low


def test_what_is_drawn_becomes_what_runs() -> None:
    axes = {
        "rl.optimizer.lr": LogUniform(kind="log", low=1.2345e-5, high=1e-2),
        "rl.loss.low": Uniform(kind="uniform", low=0.1, high=0.4),
        "rl.group_size": Integer(kind="int", low=4, high=17, step=4),
        "rl.kl.coef": KL,
        "rl.ema": Categorical(kind="choice", values=(None, 0.9)),
    }
    assert decode(axes["rl.optimizer.lr"], 3.14159e-4) == 3.14e-4
    assert decode(axes["rl.optimizer.lr"], 1.2346e-5) == 1.2345e-5, "rounding must not leave the range"
    assert distribution(axes["rl.group_size"]).high == 16
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    present = {"rl.optimizer.lr": 1 / 3e4, "rl.loss.low": 0.2, "rl.group_size": 4, "rl.kl.coef": 0.0, "rl.ema": 0.9}
    for number in range(40):
        drawn = study.ask({key: distribution(axis) for key, axis in axes.items()}).params
        values = values_of(axes, drawn, present, number)
        assert values == present if number == 0 else values != present
        ran = load_params(PARAMS, overrides=[override(key, value) for key, value in values.items()]).rl
        for key, value in values.items():
            assert reduce(getattr, key.removeprefix("rl.").split("."), ran) == value
            if key in ("rl.optimizer.lr", "rl.loss.low") and number and value != axes[key].low:
                assert value == float(f"{value:.3g}") and math.isclose(value, drawn[key], rel_tol=6e-3)


def test_a_space_from_the_form_is_sent_whole(tmp_path: Path) -> None:
    space = {"rl.optimizer.lr": {"kind": "log", "low": 1e-4, "high": 1e-2}}
    form = section_form("sweep").model_validate({"space": space, "trials": 3, "set": ["rl.steps=2"]})
    given = form_overrides({"sweep": form})
    shutil.copytree(PARAMS, tmp_path / "params")
    found = load_params(tmp_path / "params", overrides=given).sweep
    assert list(found.space) == ["rl.optimizer.lr"] and found.trials == 3 and found.set == ("rl.steps=2",)
    rl = section_form("rl").model_validate({"steps": 9, "optimizer": {"type": "muon", "adamw_scale": 0.1}})
    assert form_overrides({"rl": rl}) == ["rl.steps=9", 'rl.optimizer.type="muon"', "rl.optimizer.adamw_scale=0.1"]


def test_the_space_of_a_preset_fits_it(tmp_path: Path) -> None:
    """As in the worktree of `mathrl sweep run --preset`: its params/ has the preset merged."""
    preset = "qwen2.5-0.5b-gsm8k"
    shutil.copytree(PARAMS, tmp_path / "params")
    before, after = load_params(PARAMS), load_params(PARAMS, preset=preset)
    write_params(before, after, tmp_path / "params")
    section = load_params(tmp_path / "params").sweep
    present = check_space(section, tmp_path / "params")
    assert present["rl.optimizer.lr"] == after.rl.optimizer.lr
    low, high = (getattr(section.space["rl.optimizer.lr"], end) for end in ("low", "high"))
    assert low <= after.rl.optimizer.lr <= high, "AdamW on all weights needs other rates than Muon"


def test_a_study_of_a_preset_bears_its_name_unless_one_is_given() -> None:
    name = "qwen2.5-0.5b-gsm8k"
    assert with_study(name, ["rl.steps=5"], ROOT) == ["sweep.study=qwen2-5-0-5b-gsm8k", "rl.steps=5"]
    assert with_study(name, ["sweep.study=mine"], ROOT) == ["sweep.study=mine"]
    assert with_study(None, [], ROOT) == []
    assert load_params(PARAMS, overrides=with_study(name, [], ROOT)).sweep.study == "qwen2-5-0-5b-gsm8k"


def test_a_sweep_of_a_preset_is_in_its_worktree_and_says_what_makes_its_inputs(
    tmp_path: Path, warm_python: Path
) -> None:
    root = tmp_path / "checkout"
    shutil.copytree(PARAMS, root / "params")
    (root / "params/presets").mkdir()
    (root / "params/presets/tiny.yaml").write_text("help: tiny\nrl: {lr: 0.0123}\nsweep: {study: small}\n")
    (root / ".gitignore").write_text("/runs/\n/.mathrl/\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MATHRL_")}
    # Prefect reads its settings at import: those of the command's own server must stand by then.
    program = "import sys\nfrom mathrl.cli import main\ntry: main()\nfinally: print('prefect' in sys.modules)"
    done = subprocess.run(
        [warm_python / "python", "-c", program, "sweep", "run", "--preset", "tiny"],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False\n", done.stdout + done.stderr
    assert "models/sft: missing; `mathrl run mix --preset tiny` makes the default inputs" in done.stderr
    (worktree,) = (root / "runs").iterdir()
    there = load_params(worktree / "params")
    assert worktree.name.startswith("mix-tiny-") and (there.rl.optimizer.lr, there.sweep.study) == (0.0123, "small")


def test_a_range_that_would_ruin_a_pretrained_model_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PARAMS, tmp_path / "params"))
    base = ["model.base.type=pretrained", "model.base.path=Qwen/Qwen2.5-0.5B"]
    write_params(load_params(folder), load_params(folder, preset="gsm8k", overrides=base), folder)
    fitting, ruinous = ({"rl.optimizer.lr": {"kind": "log", "low": 3e-7, "high": high}} for high in (1e-5, 1e-3))
    assert check_space(sweep(fitting), folder) == {"rl.optimizer.lr": 1e-6}
    with pytest.raises(
        UserError, match=r"space: rl\.optimizer\.lr: rl\.optimizer\.lr is 0\.001, 1,000 times.*: narrow the range, or"
    ) as error:
        check_space(sweep(ruinous), folder)
    assert "type it" not in str(error.value), "a range is typed by nobody's run"


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
