"""Where a person meets the judgement of rates and lengths: dry runs, the flow, the stage."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.cli.main import import_command
from mathrl.cli.plan import plan_run
from mathrl.cli.recipe import print_steps
from mathrl.cli.run import run
from mathrl.compose import load_params, write_params
from mathrl.core.errors import UserError
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.core.types import Problem, write_problems
from mathrl.models.base import make_base
from mathrl.params import Params
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.run import FreshModel, Model
from mathrl.recipes.recipe import recipe_files
from mathrl.stages.stage_run import run_stage
from mathrl.tasks.reproduction import FreshClone
from mathrl.tasks.workspace import prepare, prepare_recipe

ROOT = Path(__file__).parents[2]
QWEN = ["model.base.type=pretrained", "model.base.path=Qwen/Qwen2.5-0.5B"]
RATES = [*QWEN, "sft.steps=0", "rl.optimizer.lr=0.003", "rl.optimizer.type=adamw"]
LENGTHS = ["prompt.max_tokens=512", "difficulty.max_tokens=512", "rl.max_tokens=512"]


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_dry_run_warns_once_of_a_typed_rate_and_names_what_a_preset_replaces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("rl", presets=["dapo-32b", "gsm8k-ppo-24gb"], overrides=[*QWEN, "rl.optimizer.lr=0.02"], dry_run=True)
    warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len([line for line in warned if "rl.optimizer.lr is 0.02, 20,000 times AdamW's usual rate" in line]) == 1
    assert any("presets: gsm8k-ppo-24gb replaces values of dapo-32b: " in line for line in warned)
    run("rl", presets=["gsm8k"], overrides=[*QWEN, "rl.optimizer.lr=2e-6"], dry_run=True)
    assert "usual rate" not in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/nowhere", "../models/own", "models/own/last", "own"])
def test_a_dry_run_refuses_a_model_that_is_neither_a_folder_nor_a_hub_id(path: str) -> None:
    with pytest.raises(UserError, match=f"model.base.path: {path}: no such model folder"):
        run("curate", overrides=["model.base.type=pretrained", f"model.base.path={path}"], dry_run=True)


def test_a_recipes_dry_run_has_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_steps("sft-rl", "gsm8k", QWEN)
    printed = capsys.readouterr().out
    assert "over params/ with preset gsm8k" in printed
    assert (
        "  with sft.optimizer.lr 1e-05 (adamw)" in printed
        and "  with rl.optimizer.lr 1e-06 (adamw), rl.max_tokens 512" in printed
    )
    print_steps("rft", "qwen2.5-0.5b-gsm8k", ["sft.optimizer.lr=0.01"])
    assert "warning: rft: sft.optimizer.lr is 0.01, 1,000 times AdamW's" in capsys.readouterr().out


def test_the_command_in_the_header_of_rl_from_base_works(capsys: pytest.CaptureFixture[str]) -> None:
    text = recipe_files()["rl-from-base"].read_text("utf-8")
    (command,) = [line.removeprefix("#").split() for line in text.splitlines() if "mathrl recipe rl-from-base" in line]
    settings = [word for before, word in pairwise(command) if before == "--set"]
    print_steps(command[2], command[command.index("--preset") + 1], settings)
    assert "  with rl.optimizer.lr 1e-06 (adamw), rl.max_tokens 1024" in capsys.readouterr().out


def test_the_flow_refuses_before_it_makes_a_worktree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    (tmp_path / "params" / "presets").mkdir()  # the toy's rates, as somebody's preset may have them
    toy = "help: toy\nrl: {optimizer: {type: muon, lr: 0.01}, max_tokens: 64}\n"
    (tmp_path / "params" / "presets" / "mine.yaml").write_text(toy)
    monkeypatch.setattr("mathrl.tasks.workspace.main_checkout", lambda: tmp_path)
    with pytest.raises(UserError, match=r"rl\.optimizer\.lr is 0\.01, 1,000 times Muon's"):
        prepare("rl", "mine", QWEN)
    with pytest.raises(UserError, match=r"steps\.rl: .*rl\.max_tokens is 64, too short"):
        prepare_recipe("sft-rl", "mine", QWEN)


def stage(folder: Path, capsys: pytest.CaptureFixture[str], step: str = "", overrides: Sequence[str] = ()) -> str:
    """What stage rl says in the folder: that it would start, or why not."""

    def start(params: Params) -> None:
        raise UserError("it starts")

    with pytest.raises(SystemExit) as ended:
        run_stage("rl", print, inputs=[], outputs=[], step=step, overrides=overrides, before=start)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_stage_takes_what_was_typed_for_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    settings = [*RATES, *LENGTHS]
    assert "rl.optimizer.lr is 0.003, 3,000 times" in stage(tmp_path, capsys, overrides=settings)
    (tmp_path / WORKTREE_NOTE).write_text(json.dumps({"overrides": ["preset gsm8k", "rl.optimizer.lr=0.003"]}))
    assert "it starts" in stage(tmp_path, capsys, overrides=settings)
    assert "rl.max_tokens is 8" in stage(tmp_path, capsys, overrides=[*settings, "rl.max_tokens=8"])
    # The overrides of a step's command are the recipe's too: what was typed stands in the recipe's file.
    assert "rl.optimizer.lr is 0.003" in stage(tmp_path, capsys, "deepseek-r1/rl_1", settings)
    file = tmp_path / "params" / "recipes" / "deepseek-r1.yaml"
    file.parent.mkdir()
    file.write_text(dump_yaml(read_yaml(recipe_files()["deepseek-r1"]) | {"overrides": ["rl.optimizer.lr=0.003"]}))
    assert "it starts" in stage(tmp_path, capsys, "deepseek-r1/rl_1", settings)


def test_a_reproduction_takes_the_rate_that_somebody_typed_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    typed = load_params(ROOT / "params", overrides=[*RATES, *LENGTHS]).model_dump(mode="json", by_alias=True)
    FreshClone(ROOT, "HEAD", tmp_path).write_sections({name: typed[name] for name in ("model", "prompt", "rl")})
    monkeypatch.chdir(tmp_path)
    assert "it starts" in stage(tmp_path, capsys)
    (tmp_path / WORKTREE_NOTE).unlink()
    assert "rl.optimizer.lr is 0.003, 3,000 times" in stage(tmp_path, capsys)


@pytest.fixture
def own_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a checkout, still empty, in which commands run."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def own_project(folder: Path, solution: int, *settings: str) -> None:
    """Own rows, whose solutions take so many tokens, and an own model, whose values nobody types."""
    shutil.copytree(ROOT / "params", folder / "params")
    rows = [{"ask": f"What is {n} + 1?", "gold": str(n + 1), "working": f"{n:04}" * (solution // 4)} for n in range(60)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2)
    make_base(Model(base=base, precision="float32"), folder / "start", 0)
    source = f"{{type: file, name: own, path: {folder / 'rows.jsonl'}, split: rl, prompt_key: ask, answer_key: gold"
    written = [
        f"model.base={{type: pretrained, path: {folder / 'start'}}}",
        f"curate.sources=[{source}, solution_key: working}}]",
        *("curate.test_share=0.2", "curate.decontaminate=null", "sft.steps=0", "rl.optimizer.lr=1e-6"),
        *("rl.optimizer.type=adamw", "prompt.max_tokens=512", "difficulty.max_tokens=256", "rl.max_tokens=256"),
        *("evaluate.max_tokens=256", *settings),
    ]
    params = folder / "params"
    write_params(load_params(params), load_params(params, overrides=written), params)


def test_a_dry_run_and_a_plan_hold_lengths_against_the_rows_of_local_files(
    own_checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_project(own_checkout, 200, "rl.max_tokens=160")
    with pytest.raises(UserError) as refused:
        run("pipeline", dry_run=True)
    assert str(refused.value) == (
        "rl.max_tokens is 160, and 100.0% of 60 solutions of the data are longer (95th percentile: 200 tokens): set "
        "rl.max_tokens=224; to run with it all the same, type it for this run: --set rl.max_tokens=160"
    )
    run("difficulty", dry_run=True)  # which samples with difficulty.max_tokens
    assert "of the data are longer" not in capsys.readouterr().out
    run("pipeline", overrides=["rl.max_tokens=160"], dry_run=True)
    warned = [line for line in capsys.readouterr().out.splitlines() if "of the data are longer" in line]
    assert len(warned) == 1 and warned[0].startswith("warning: ") and warned[0].endswith("since it was typed")
    run("pipeline", overrides=["rl.max_tokens=224"], dry_run=True)
    assert "of the data are longer" not in capsys.readouterr().out
    context: Any = SimpleNamespace(invoked_subcommand=None)
    plan_run(context)
    assert "warning: rl.max_tokens is 160, and 100.0% of 60 solutions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "unknown",
    [
        ["model.base={type: pretrained, path: Qwen/Qwen2.5-0.5B}"],  # whose tokenizer is not here
        ["curate.sources=[{type: hub, name: far, id: someone/far, prompt_key: q, answer_key: a, split: rl}]"],
    ],
)
def test_a_dry_run_says_nothing_of_lengths_that_it_cannot_know(
    unknown: list[str], own_checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_project(own_checkout, 200, "rl.max_tokens=160", *unknown)
    run("rl", dry_run=True)
    printed = capsys.readouterr().out
    assert "max_tokens: 160" in printed and "of the data are longer" not in printed


def test_a_dry_run_refuses_a_model_without_weights(own_checkout: Path) -> None:
    """As a clone without `git lfs pull` has them."""
    own_project(own_checkout, 200)
    (weights,) = (own_checkout / "start").glob("*.safetensors")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5242880\n")
    with pytest.raises(UserError, match=r"model\.safetensors: a pointer of Git LFS and no weights: run `git lfs pull`"):
        run("pipeline", dry_run=True)
    weights.unlink()
    with pytest.raises(UserError, match=r"start: no model folder with weights: it has no \*\.safetensors"):
        run("pipeline", dry_run=True)


def test_an_evaluation_is_held_against_the_benchmark_before_it_samples(
    own_checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_project(own_checkout, 200, "evaluate.max_tokens=160", "run.device=cpu", "rollout.max_sequences=8")
    problems = [Problem(str(n), f"What is {n}?", (str(n),), "own", "test", solution=f"{n:03};" * 50) for n in range(4)]
    write_problems(own_checkout / "data/curated/test.jsonl", problems)
    words = ["--model", "start", "--benchmark", "test", "--samples", "1", "--set", "evaluate.ks=[1]"]

    def evaluate(*further: str) -> None:
        import_command("evaluate").main([*words, "--output", "out", *further], standalone_mode=False)

    cut = "evaluate.max_tokens is 160, and 100.0% of 4 solutions of test are longer (95th percentile: 200 tokens)"
    varied = ["--vary", "evaluate.temperature=[0, 1]"]
    for further in ([], varied, ["--tools", "python"]):
        with pytest.raises(UserError) as refused:
            evaluate(*further)
        assert str(refused.value).startswith(f"{cut}: set evaluate.max_tokens=224; to run with it all the same")
    assert not (own_checkout / "out").exists()
    # What is typed is taken: in --set, and as a value that is varied.
    evaluate("--set", "evaluate.max_tokens=160")
    said = capsys.readouterr()
    assert f"warning: {cut}; taken, since it was typed" in said.err and "pass@1" in said.out
    evaluate("--vary", "evaluate.max_tokens=[160, 224]")
    assert capsys.readouterr().err.count(f"warning: {cut}") == 1


def test_a_model_of_the_hub_is_not_measured_with_the_demos_lengths(
    own_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `mathrl evaluate --model Qwen/… --benchmark aime24` without a preset; here the model is a folder."""
    shutil.copytree(ROOT / "params", own_checkout / "params")
    base = FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2)
    make_base(Model(base=base, precision="float32"), own_checkout / "start", 0)
    questions = [{"question": f"What is {n}? {'Think. ' * 30}", "answer": str(n)} for n in range(4)]
    (own_checkout / "named").mkdir()
    (own_checkout / "named" / "aime24_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    monkeypatch.setenv("MATHRL_DATA", str(own_checkout / "named"))
    with pytest.raises(UserError, match=r"prompt\.max_tokens is 64, and 100\.0% of 4 prompts of aime24 are longer"):
        import_command("evaluate").main(["--model", "start", "--benchmark", "aime24"], standalone_mode=False)
