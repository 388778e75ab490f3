"""Every stage of a pretrained model refuses lengths that cut off its data, and SFT data without solutions."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.types import Problem, write_problems
from mathrl.models.base import make_base
from mathrl.params import Params
from mathrl.params.load import dump_yaml
from mathrl.params.run import FreshModel, Model
from mathrl.recipes.recipe import load_recipe
from mathrl.stages import command
from mathrl.stages.known_lengths import judge_lengths, judge_recipe
from mathrl.tasks.lengths import is_judged

ROOT = Path(__file__).parents[2]
STARTED = "--start start --data rows.jsonl"
OPTIONS = {
    "sft": f"{STARTED} --dev rows.jsonl",
    "difficulty": f"{STARTED} --examples rows.jsonl",
    "rl": f"{STARTED} --dev rows.jsonl --examples rows.jsonl",
    "sample": f"{STARTED} --examples rows.jsonl",
    "evaluate": "--test rows.jsonl --examples rows.jsonl --model start=start",
}
STAGES = tuple(OPTIONS)
SETTINGS = (
    "run.processes=1", "run.device=cpu", "prompt.template=plain", "model.precision=float32", "sft.steps=1",
    "sft.optimizer={type: adamw, lr: 1e-5}", "rl.steps=1", "rl.optimizer={type: adamw, lr: 1e-6}",
    "rl.prompts_per_step=2", "rl.group_size=2", "rl.dev.samples=1", "sample.samples=2",
    "difficulty.samples=8", "difficulty.max_problems=2",
    "evaluate.samples=1", "evaluate.ks=[1]", "evaluate.limit=20", "rollout.max_sequences=32", "prompt.max_tokens=128",
)  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base, folder = FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2), tmp_path_factory.mktemp("model")
    make_base(Model(base=base, precision="float32"), folder / "start", 0)
    return folder / "start"


@pytest.fixture
def place(tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params/, a model folder, and problems whose questions take 140 tokens and solutions 200."""
    (tmp_path / "params").mkdir()
    for file in (ROOT / "params").glob("*.yaml"):
        (tmp_path / "params" / file.name).write_text(file.read_text())
    (tmp_path / "start").symlink_to(start)
    rows = [
        Problem(str(n), "+".join(["1"] * 70) + "=", ("70",), "own", "rl", solution=f"{n:03};" * 50) for n in range(30)
    ]
    write_problems(tmp_path / "rows.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MATHRL_MIRROR", "none")
    return tmp_path


def run(stage: str, capsys: pytest.CaptureFixture[str], settings: Sequence[str]) -> tuple[int, str]:
    """The exit status of the stage as a recipe's step, and what it says."""
    work = importlib.import_module(f"mathrl.stages.{stage}").work
    words = ["pipelines/recipes/r/step", *OPTIONS[stage].split()]
    base = f"model.base={{type: pretrained, path: {Path.cwd() / 'start'}}}"
    sets = [word for setting in (base, *SETTINGS, *settings) for word in ("--set", setting)]
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [stage, *words, *sets])
        try:
            command.main(stage, work)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, capsys.readouterr().err


def type_it(place: Path, *overrides: str) -> None:
    """As `mathrl recipe r --set …` writes them, which no stage takes for the recipe's own."""
    (place / "params" / "recipes").mkdir(exist_ok=True)
    (place / "params" / "recipes" / "r.yaml").write_text(dump_yaml({"overrides": list(overrides)}))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_refuses_what_cuts_its_data_off(stage: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [f"{stage}.max_tokens=160"] * (stage != "sft")
    status, said = run(stage, capsys, lengths)
    assert status == 2 and "prompt.max_tokens is 128, and 100.0% of " in said
    assert "prompts of the data are longer (95th percentile: 140 tokens): set prompt.max_tokens=160; to run" in said
    if lengths:
        assert f"{stage}.max_tokens is 160, and 100.0% of " in said
        assert f"(95th percentile: 200 tokens): set {stage}.max_tokens=224; to run" in said
    if "--examples" in OPTIONS[stage]:
        fitting = ["prompt.max_tokens=160", f"{stage}.max_tokens=224"]
        status, said = run(stage, capsys, [*fitting, "prompt.few_shot=1"])
        assert status == 2 and "prompt.max_tokens is 160, and 100.0% of " in said, "a prompt has its examples"
    assert not (place / "pipelines").exists()
    # What was typed is taken with a warning, and the other length is refused all the same.
    type_it(place, "prompt.max_tokens=128")
    status, said = run(stage, capsys, lengths)
    assert status == (2 if lengths else 0) and ("prompt.max_tokens is 128" in said) == (not lengths)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_runs_with_lengths_that_hold_its_data(
    stage: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = 130 if stage == "sample" else 224
    if stage == "sample":
        type_it(place, "sample.max_tokens=130")
    status, said = run(stage, capsys, ["prompt.max_tokens=160", *[f"{stage}.max_tokens={length}"] * (stage != "sft")])
    lines = [line for line in said.splitlines() if "of the data are longer" in line]
    assert status == 0 and len(lines) == (stage == "sample"), said
    if lines:  # what was typed is one warning
        assert lines[0].startswith("warning: sample.max_tokens is 130") and lines[0].endswith("since it was typed")


TEACH = ("sft.steps=9", "sft.terse_share=0", "curate.sft_share=0.25")
REFUSED = (
    "sft learns from worked solutions, and {} of curate.sources has none: leave sft out with sft.steps=0 (method=grpo "
    "does), learn the answers alone with sft.terse_share=1, or name the field with the solutions (solution_key)"
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MATHRL_DATA", raising=False)


def rows(folder: Path, **more: str) -> str:
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1), **more}) for n in range(30)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return f"data={folder / 'rows.jsonl'}"


def taught(*overrides: str) -> Params:
    return load_params(ROOT / "params", overrides=[*overrides, *TEACH])


def refused(params: Params) -> list[str]:
    return judge_lengths(params, ["sft"], (), None).refused


def test_rows_of_a_file_without_solutions(tmp_path: Path) -> None:
    own = rows(tmp_path)
    assert refused(taught(own)) == [REFUSED.format("rows")]
    assert is_judged(taught(own)) and not refused(load_params(ROOT / "params", overrides=[own, *TEACH, "sft.steps=0"]))
    assert not refused(load_params(ROOT / "params", overrides=[own, *TEACH, "sft.terse_share=1"]))
    assert not refused(
        taught(rows(tmp_path, solution="We count up by one from the number, and so we get the number that comes next."))
    )


def test_named_sets_are_taught_unless_they_are_published_without_solutions() -> None:
    for data in ("countdown", "dapo", "orz"):
        assert refused(taught(f"data={data}")) == [REFUSED.format(data)]
    for data in ("gsm8k", "math", "chain"):
        assert refused(taught(f"data={data}")) == []


def test_of_a_mixture_the_source_without_solutions_is_named() -> None:
    assert refused(taught("data=gsm8k+countdown")) == [REFUSED.format("countdown")]


def test_a_recipes_step_is_named_and_one_that_learns_from_samples_is_not_asked() -> None:
    groups = ("data=countdown", *TEACH)
    judged = judge_recipe(load_recipe("rft", ROOT / "params", groups), ROOT / "params", overrides=("data=countdown",))
    assert judged.refused == [f"steps.sft: {REFUSED.format('countdown')}"]
