"""What an evaluation keeps while it runs, and what kept responses stand for."""

from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mathrl.compose import load_params
from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.core.types import Problem
from mathrl.models.load import make_base
from mathrl.params import Params
from mathrl.reports import evaluation
from mathrl.reports.evaluation import evaluate_once, evaluation_key
from mathrl.rollout.sampler import Sampler
from tests.conftest import ROOT

PROBLEMS = [Problem(id=str(n), question=f"{n}+1=", answers=(str(n + 1),), source="s", split="test") for n in range(6)]
SMALL = (
    "model.base={hidden_size: 32, intermediate_size: 48, layers: 1, heads: 2, kv_heads: 1, alphabet: arithmetic}",
    "evaluate.samples=2", "evaluate.ks=[1, 2]", "evaluate.max_tokens=4", "rollout.max_sequences=4", "run.device=cpu",
    "run.processes=1", "prompt.template=plain",
)  # fmt: skip


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    params = load_params(ROOT / "params", overrides=SMALL)
    make_base(params.model, Path("model"), 0)
    return params


def responses(folder: str) -> list[dict[str, Any]]:
    return list(read_jsonl(Path(folder) / "responses.jsonl"))


def test_an_interrupted_evaluation_goes_on(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(output: str) -> int:
        """Evaluate; returns the number of problems that were sampled."""
        sampled.clear()
        evaluate_once("model", "own", params, Path(output), problems=PROBLEMS)
        return sum(sampled)

    sample, sampled, limit = Sampler.sample, list[int](), [99]

    def counted(self: Sampler, problems: Any, *words: Any, **options: Any) -> Any:
        if len(sampled) == limit[0]:
            raise KeyboardInterrupt
        sampled.append(len(problems))
        return sample(self, problems, *words, **options)

    monkeypatch.setattr(Sampler, "sample", counted)
    assert evaluate("whole") == 6 and not list(Path("home/state").iterdir())
    limit[0] = 2
    with pytest.raises(KeyboardInterrupt):
        evaluate("resumed")
    limit[0] = 99
    (kept,) = Path("home/state").iterdir()
    with FileLock(f"{kept.absolute()}.lock"):  # another process makes the same evaluation: this one starts by itself
        assert evaluate("beside") == 6
    assert evaluate("resumed") == 2 and not list(Path("home/state").iterdir())
    assert responses("whole") == responses("resumed") == responses("beside")
    assert (Path("whole") / "speed.json").is_file() and not (Path("resumed") / "speed.json").exists()


def test_other_worked_examples_are_another_evaluation(tmp_path: Path) -> None:
    """Those of a file that evaluate.few_shot_from names: responses are kept under what they follow from."""
    file = tmp_path / "worked.jsonl"
    params = load_params(ROOT / "params", overrides=[f"evaluate.few_shot_from={file}", "prompt.few_shot=1"])
    keys = []
    for solution in ("1 and 1 make 2.", "1 and 1 make 2.", "Count: 2."):
        rows = [
            {"question": f"What is {n}+2?", "answer": str(n + 2), "solution": f"{solution} {n + 2}"} for n in range(5)
        ]
        write_jsonl(file, rows)
        keys.append(evaluation_key("ab12", "test", PROBLEMS, params, tmp_path / "sft.jsonl"))
    assert keys[0] == keys[1] != keys[2]


def test_responses_that_an_older_release_graded_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    params, keys = load_params(ROOT / "params"), []
    for number in ("4", "4", "5"):
        monkeypatch.setattr(evaluation, "stage_code", lambda stage, number=number: {"value": f"{stage} {number}"})
        keys.append(evaluation_key("ab12", "test", PROBLEMS, params))
    assert keys[0] == keys[1] != keys[2]
