"""The public names of `import mathrl`: lazy, typed, documented; their examples and the notebooks run in a project."""

import doctest
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import mathrl
from mathrl.api import frames
from mathrl.core.files import write_jsonl

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
FUNCTIONS = [name for name in mathrl.__all__ if inspect.isfunction(getattr(mathrl, name))]


def test_import_mathrl_is_quick_and_light() -> None:
    """With the verifier it loads no other package, and few modules: 0.1 s."""
    code = (
        "import sys; before = {*sys.modules}; import mathrl; mathrl.grade; new = {*sys.modules} - before; "
        "print({name.split('.')[0] for name in new} - sys.stdlib_module_names, len(new) < 150)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'mathrl'} True\n"


def test_the_names_are_few_lazy_and_listed() -> None:
    assert len(mathrl.__all__) == 27 and list(mathrl.__all__) == sorted(mathrl.__all__)
    assert set(mathrl.__all__) <= set(dir(mathrl))
    with pytest.raises(AttributeError, match="no attribute 'trainn'"):
        mathrl.trainn  # noqa: B018
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert [name for name in mathrl.__all__ if f".{name}\n" not in page and f"`mathrl.{name}`" not in page] == []
    assert (ROOT / "mathrl" / "py.typed").exists()


@pytest.mark.parametrize("name", mathrl.__all__)
def test_a_public_name_is_documented_and_typed(name: str) -> None:
    value = getattr(mathrl, name)
    assert value.__doc__ and value.__doc__.strip()
    if name not in FUNCTIONS:
        return
    hints = get_type_hints(value)
    signature = inspect.signature(value)
    assert set(signature.parameters) | {"return"} == set(hints), name
    if value.__module__.startswith("mathrl.api"):
        assert "Examples:" in value.__doc__ and "Raises:" in value.__doc__
        assert all(f"{parameter}" in value.__doc__ for parameter in signature.parameters if parameter != "inputs")


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "Examples:" in (getattr(mathrl, name).__doc__ or "")])
def test_an_example_runs(name: str, small_project: Path, request: pytest.FixtureRequest) -> None:
    if name == "promote":
        request.getfixturevalue("no_champion")
    if name == "import_run":
        rows = [{"step": step, "reward/accuracy": 0.1 * step} for step in range(1, 5)]
        write_jsonl(small_project / "outputs" / "grpo" / "metrics.jsonl", rows)
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(mathrl, name)) or "")
    assert examples, name
    values: dict[str, Any] = {"mathrl": mathrl, name: getattr(mathrl, name)}
    for example in examples:
        exec(example.source, values)


FRAMES: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, str]]] = {
    "problems": (lambda: mathrl.problems("test"), frames.PROBLEMS),
    "runs": (mathrl.runs, frames.RUNS),
    "metrics": (lambda: mathrl.metrics("rl"), frames.METRICS),
    "responses": (lambda: mathrl.responses("evaluate"), frames.RESPONSES),
    "rollouts": (lambda: mathrl.rollouts("rl"), frames.ROLLOUTS),
    "trials": (lambda: mathrl.trials("small"), frames.TRIALS),
}
PINNED = {
    "problems": "id question answers source split level subject solution pass_rate",
    "runs": "name run started status folder health dev sft rl rl_low rl_high sampled_tokens minutes",
    "metrics": "step at",
    "responses": "model benchmark problem_id sample question answers level subject response extracted correct rule "
    "length truncated",
    "rollouts": "step problem response question answers source level text correct extracted rule reward parts length "
    "truncated odd trained",
    "trials": "trial state dev seconds error",
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_columns_and_their_types_are_stable(name: str, small_project: Path) -> None:
    read, columns = FRAMES[name]
    frame = read()
    pinned = PINNED[name].split()
    assert list(columns) == pinned == list(frame.columns[: len(pinned)])
    assert {column: str(frame.dtypes[column]) for column in pinned} == columns
    assert len(frame) > 0
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert all(f"`{column}`" in page for column in pinned), f"docs/reference/api.md does not list the columns of {name}"
    if name in ("metrics", "trials"):
        assert len(frame.columns) > len(pinned)
    else:
        assert len(frame.columns) == len(pinned)


def test_a_wrong_name_is_an_error_that_says_what_to_give(small_project: Path, tmp_path: Path) -> None:
    with pytest.raises(mathrl.UserError, match="no such file"):
        mathrl.problems("tset")
    with pytest.raises(mathrl.UserError, match="no stage 'rx'"):
        mathrl.run("rx")
    with pytest.raises(mathrl.UserError, match="rollouts of training"):
        mathrl.responses("reports/rl/rollouts.parquet")
    rows = tmp_path / "cut.jsonl"
    rows.write_text('{"model": "rl"}\n')
    with pytest.raises(mathrl.UserError, match=r"cut.jsonl, line 1: no field 'sample'"):
        mathrl.responses(rows)


def test_a_model_is_trained_on_problems_of_a_list(small_project: Path) -> None:
    problems = [
        mathrl.Problem(id=f"mine/{n}", question=f"{n}+1=", answers=(str(n + 1),), source="mine", split="rl",
                       solution=f"{n}+1={n + 1}")
        for n in range(8)
    ]  # fmt: skip
    model = mathrl.train(
        "models/sft", problems, "mine/rl", dev=problems, overrides=["rl.steps=1", "rl.prompts_per_step=4"]
    )
    assert (model / "config.json").is_file() and len(mathrl.metrics("mine/rl")) == 1
    one = ["run.processes=1"]  # pytest's threads must not fork
    assert mathrl.evaluate(model, "mine", problems=problems, output="mine/evaluated", overrides=one).problems == 8
    assert len(mathrl.responses("mine/evaluated")) == 8 * 4


NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["follow_runs", "grade_and_audit", "look_at_data"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, small_project: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit it"
    limits = {"timeout": 240, "startup_timeout": 600, "iopub_timeout": 240}
    place = {"metadata": {"path": str(small_project)}}
    NotebookClient(notebook, kernel_name="python3", resources=place, **limits).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert len(shown) >= 4 and not [each for each in shown if each.output_type == "error"]
