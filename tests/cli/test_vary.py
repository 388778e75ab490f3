"""`mathrl evaluate --vary`: every combination is evaluated, and compared with the first."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mathrl.cli.evaluate import combinations
from mathrl.core.errors import EXIT_USER_ERROR, UserError
from mathrl.core.files import read_json
from mathrl.core.types import Problem, write_problems
from mathrl.evaluation.paired import compare
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.summary import accuracies
from mathrl.models.base import make_base
from mathrl.params.load import apply_override
from mathrl.params.run import FreshModel, Model

ROOT = Path(__file__).resolve().parents[2]


def test_all_combinations_are_named_by_their_values() -> None:
    varied = combinations(["prompt.template=[plain, boxed]", "evaluate.temperature=[0, 0.7]"])
    assert list(varied) == [
        "template=plain, temperature=0", "template=plain, temperature=0.7", "template=boxed, temperature=0",
        "template=boxed, temperature=0.7",
    ]  # fmt: skip
    assert varied["template=boxed, temperature=0"] == ['prompt.template="boxed"', "evaluate.temperature=0"]


def test_a_value_stays_what_it_is_in_the_list() -> None:
    varied = combinations(["prompt.system=[null, '1', \"a: ü\"]"])
    assert list(varied.values()) == [["prompt.system=null"], ['prompt.system="1"'], ['prompt.system="a: ü"']]
    for (setting,), value in zip(varied.values(), (None, "1", "a: ü"), strict=True):
        apply_override(values := {"prompt": {}}, setting)
        assert values == {"prompt": {"system": value}}


def test_what_cannot_be_varied_is_refused() -> None:
    for texts, problem in (
        (["prompt.template"], "write KEY=[VALUE, VALUE]"),
        (["prompt.template=[plain]"], "write KEY=[VALUE, VALUE]"),
        (["a.b=[1, 2]", "a.b=[3, 4]"], "a.b is varied twice"),
        (["a.b=[1, 1]"], "a value is listed twice"),
        (["a.b=[1, 2, 3, 4, 5, 6, 7, 8, 9]", "a.c=[1, 2, 3, 4, 5, 6, 7, 8]"], "72 evaluations, more than 64"),
    ):
        with pytest.raises(UserError) as refused:
            combinations(texts)
        assert problem in str(refused.value)


def test_a_model_is_evaluated_with_every_setting(tmp_path: Path, warm_python: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    base = FreshModel(hidden_size=32, intermediate_size=48, layers=1, heads=2, alphabet="arithmetic")
    make_base(Model(base=base), tmp_path / "tiny", 0)
    problems = [
        Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="chain", split="test") for n in range(6)
    ]
    write_problems(tmp_path / "data/curated/test.jsonl", problems)
    write_problems(tmp_path / "data/curated/sft.jsonl", problems)
    words = ["evaluate", "--model", "tiny", "--benchmark", "test", "--samples", "2", "--output", "out"]
    words += ["--vary", "evaluate.max_tokens=[1, 5]", "--set", "run.device=cpu", "--set", "run.processes=2"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [warm_python / "python", "-c", "from mathrl.cli import main; main()", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "MATHRL_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=False,
        )

    done = run()
    assert done.returncode == 0, done.stderr
    assert "pass@1 by setting, 6 problems" in done.stdout and "max_tokens=5" in done.stdout
    assert "different from max_tokens=1 beyond chance: none" in done.stdout
    rows = [read_run(tmp_path / f"out/{number}/responses.jsonl", None, None).rows for number in range(2)]
    test = compare("a", "b", *map(accuracies, rows), responses=2)
    assert f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]" in done.stdout
    assert read_json(tmp_path / "out/0/speed.json")["processes"] == 2
    for number, longest in enumerate((1, 5)):
        lines = (tmp_path / f"out/{number}/responses.jsonl").read_text().splitlines()
        assert len(lines) == 12 and max(line.count('"length": ') for line in lines) == 1
        assert all(int(line.split('"length": ')[1].split(",")[0]) <= longest for line in lines)
    # What one of several processes refuses is said once, as by one alone.
    (tmp_path / "tiny/model.safetensors").unlink()
    refused = run()
    assert refused.returncode == EXIT_USER_ERROR and refused.stderr.count("it has no *.safetensors") == 1
    assert not list((tmp_path / "home/state").iterdir())
