"""The contamination probe: its AUC by hand, its scores against a plain forward, a model that has met the problems."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_jsonl
from mathrl.core.types import Problem
from mathrl.data.templates import demonstration
from mathrl.generators import generate
from mathrl.models.base import make_base
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.packing import Group
from mathrl.params import Params
from mathrl.reports.evaluation import evaluate_once
from mathrl.reports.probe import (
    completion_group,
    paired_auc,
    probe_benchmark,
    probe_score,
    score_groups,
    solution_group,
)

SMALL = (
    "model.base.hidden_size=32", "model.base.intermediate_size=48", "model.base.layers=1", "model.base.heads=2",
    "model.base.alphabet=arithmetic", "model.precision=float32", "run.processes=1", "run.device=cpu",
    "evaluate.samples=1", "evaluate.ks=[1]", "evaluate.max_tokens=12",
)  # fmt: skip
PROBLEMS = list(generate("chain", {"test": 16}, {"steps": [4], "notation": "bare"}, seed=0, name="chain"))


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(overrides=[*SMALL, "curate.sources.0.options.steps=[4]"])


@pytest.fixture(scope="module")
def base(params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "base"
    make_base(params.model, folder, 0)
    return folder


@pytest.mark.parametrize(
    ("own", "twins", "auc"),
    [
        ([3.0], [[1.0]], 1.0),
        ([1.0], [[3.0]], 0.0),
        ([2.0], [[2.0, 2.0]], 0.5),
        ([3.0, 1.0], [[1.0, 2.0], [1.0, 2.0]], 0.625),  # 2 of 2, and a tie of 2
        ([-2.0, -0.5], [[-2.5], [-1.0]], 1.0),  # all pairs would give 0.75
        ([5.0, 0.0, 4.0], [[4.0], [1.0, -1.0, 2.0, 3.0], [4.0, 5.0]], (1 + 1 / 4 + 1 / 4) / 3),
    ],
)
def test_the_auc_counts_the_wins_over_own_twins(own: list[float], twins: list[list[float]], auc: float) -> None:
    interval = paired_auc(own, twins)
    assert interval.mean == pytest.approx(auc) and interval.low <= auc <= interval.high


def test_exchangeable_scores_are_told_apart_as_often_as_the_level_says() -> None:
    """Over 400 seeded trials of 60 problems with 2 twins from one distribution; 0.05 +- 4 standard errors."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(400, 60, 3, generator=generator).tolist()
    wrong = 0
    for trial in values:
        interval = paired_auc([row[0] for row in trial], [row[1:] for row in trial])
        wrong += not interval.low <= 0.5 <= interval.high
    assert abs(wrong / 400 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 400)


def test_the_verdict_follows_the_interval() -> None:
    own, twins = [1.0] * 30, [[0.0]] * 30
    assert probe_score("answer", own, twins, 0.95).verdict.startswith("higher on the benchmark")
    assert probe_score("answer", [0.0] * 30, [[1.0]] * 30, 0.95).verdict.startswith("lower on the benchmark")
    even = probe_score("answer", [0.0, 1.0] * 15, [[1.0], [0.0]] * 15, 0.95)
    assert (even.auc.mean, even.verdict) == (0.5, "no sign of the benchmark in the model")


def test_a_question_is_cut_in_its_middle_before_a_word(params: Params, base: Path) -> None:
    tokenizer = load_tokenizer(base, params.model)

    def cut(question: str, **prompt: Any) -> tuple[str, str]:
        problem = Problem("p", question, ("1",), "s", "test")
        group = completion_group(problem, params.prompt.model_copy(update=prompt), tokenizer)
        assert group is not None
        return tokenizer.decode(group.prompt), tokenizer.decode(group.responses[0])

    assert cut("7+5-3*4=") == ("7+5-", "3*4=")
    assert cut("1+1 2+2 3+3") == ("1+1", " 2+2 3+3")
    assert cut("7+5-3*4=", instruction="=") == ("7+5-", "3*4="), "nothing after the question is completed"
    messages = PROBLEMS[0].control.__class__(messages=({"role": "user", "content": "x"},))
    assert completion_group(PROBLEMS[0].with_(control=messages), params.prompt, tokenizer) is None
    assert solution_group(PROBLEMS[0].with_(solution=None), params.prompt, tokenizer) is None


def test_scores_are_those_of_a_plain_forward_whatever_stands_beside_them(params: Params, base: Path) -> None:
    model = load_model(base, params.model, "cpu")
    groups = [Group((5, 6, 7), ((8, 9),)), Group((5,), ((6, 7, 8, 9, 10),)), Group((9, 8), ((7,),))]
    for group, scored in zip(groups, score_groups(model, groups), strict=True):
        ids = [*group.prompt, *group.responses[0]]
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float(), -1)
        own = [float(logp[place - 1, ids[place]]) for place in range(len(group.prompt), len(ids))]
        assert scored.logprob == pytest.approx(sum(own) / len(own), abs=1e-5)  # float32, another order of sums
        best = [int(logp[place - 1].argmax()) for place in range(len(group.prompt), len(ids))]
        assert scored.greedy == (best == list(group.responses[0]))


@pytest.fixture(scope="module")
def met(params: Params, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model after it has learned the texts of the test problems by heart."""
    model, tokenizer = load_model(base, params.model, "cpu"), load_tokenizer(base, params.model)
    texts = [problem.question + demonstration(problem, params.prompt, terse=False) for problem in PROBLEMS]
    ids = [tokenizer.encode(text) for text in texts]
    longest = max(map(len, ids))
    batch = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model.train()
    for _ in range(80):
        logits = model(input_ids=batch, attention_mask=real, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[real[:, 1:] > 0], batch[:, 1:][real[:, 1:] > 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("met") / "model"
    export_model(model.eval(), tokenizer, folder, "# A model that has met the test problems\n")
    return folder


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_jsonl(tmp_path / "data/curated/test.jsonl", (problem.to_row() for problem in PROBLEMS))
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_a_model_that_met_the_problems_is_told_from_one_that_did_not(
    params: Params, base: Path, met: Path, checkout: Path
) -> None:
    reports = {}
    for name, folder in (("base", base), ("met", met)):
        evaluate_once(folder, "test", params, checkout / name, problems=PROBLEMS)
        reports[name] = {row.score: row for row in probe_benchmark(folder, "test", params, checkout / name, 2).scores}
    assert set(reports["met"]) == {"completion", "solution", "answer"}
    for score in ("completion", "solution"):
        assert reports["met"][score].auc.low > 0.5 and reports["met"][score].twins == 32
        assert reports["base"][score].auc.low < 0.5 < reports["base"][score].auc.high
    assert reports["met"]["completion"].verbatim > reports["met"]["completion"].twins_verbatim == 0.0
    written = read_json(checkout / "met" / "probe.json")
    assert written["confidence"] == pytest.approx(1 - 0.05 / 3), "room for three scores"
    assert written["scores"]["solution"]["verdict"].startswith("higher on the benchmark")


def test_problems_without_twins_are_refused(params: Params, base: Path, checkout: Path) -> None:
    rows = [problem.with_(source="other", question="how many").to_row() for problem in PROBLEMS]
    write_jsonl(checkout / "data/curated/test.jsonl", rows)
    with pytest.raises(UserError, match="fewer than 10 problems have twins"):
        probe_benchmark(base, "test", params, checkout / "out", 2)
