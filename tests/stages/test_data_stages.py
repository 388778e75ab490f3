"""curate, difficulty, mix and evaluate one after another on a tiny model of random weights."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl
from mathrl.core.gpus import CPU
from mathrl.core.records import RunRecord
from mathrl.core.results import EvaluationSummary
from mathrl.core.types import read_problems
from mathrl.generators import VERSIONS
from mathrl.models.base import make_base
from mathrl.params import Params
from mathrl.params.run import ModelVerifier
from mathrl.reports.evaluation import evaluate_once
from mathrl.rollout.choices import choose_engine
from mathrl.stages import curate, difficulty, evaluate, mix
from mathrl.stages.stage_run import StageRun

PARAMS = Path(__file__).parents[2] / "params"
SMALL = (
    "run.processes=1", "run.device=cpu", "model.base.hidden_size=16", "model.base.intermediate_size=16",
    "model.base.layers=1", "model.base.heads=2", "model.precision=float32",
    "curate.sources.0.counts={sft: 8, rl: 24, dev: 6, test: 12}",
    "difficulty.samples=8", "difficulty.max_problems=20", "difficulty.max_tokens=6",
    "mix.components=[{source: chain, weight: 1, band: [0, 1]}]",
    "evaluate.samples=2", "evaluate.ks=[1, 2]", "evaluate.max_tokens=6",
    "rollout.max_sequences=32",
)  # fmt: skip


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    return load_params(PARAMS, overrides=SMALL)


def start(name: str, params: Params) -> StageRun:
    run = StageRun(name, params, Path("state").absolute() / name, RunRecord(Path("records").absolute() / name))
    run.state.mkdir(parents=True, exist_ok=True)
    run.artifacts.mkdir(parents=True, exist_ok=True)
    return run


def models(params: Params) -> None:
    for seed, name in enumerate(("base", "sft", "rl")):
        make_base(params.model, Path("models") / name, seed if name == "rl" else 0)


def test_the_data_stages_follow_one_another(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    curate.work(start("curate", params))
    assert {s: len(read_problems(Path(f"data/curated/{s}.jsonl"))) for s in ("sft", "rl", "dev", "test")} == {
        "sft": 8,
        "rl": 24,
        "dev": 6,
        "test": 12,
    }
    models(params)

    run = start("difficulty", params)
    difficulty.work(run)
    rates = list(read_jsonl(Path("data/difficulty/pass_rates.jsonl")))
    assert len(rates) == 20 and all(row["low"] <= row["pass_rate"] <= row["high"] for row in rates)
    assert read_json(Path("data/difficulty/summary.json"))["pass_at_8"] >= 0
    assert (run.artifacts / "difficulty.png").stat().st_size > 5_000

    mix.work(start("mix", params))
    mixture = read_problems(Path("data/mixture/train.jsonl"))
    assert {p.id for p in mixture} == {row["id"] for row in rates}
    assert all(p.pass_rate is not None for p in mixture)

    run = start("evaluate", params)
    evaluate.work(run, metrics_file=Path("reports/metrics.json"))
    summary = read_json(Path("reports/summary.json"))
    shown = read_json(Path("reports/metrics.json"))
    assert set(shown) == set(summary["models"])
    for model, figures in shown.items():
        assert {name: summary["models"][model][name] for name in figures} == figures and "pass_at_1" in figures
    assert list(summary["models"]) == ["base", "rl", "sft"] and summary["benchmark"] == "test"
    for figures in summary["models"].values():
        assert figures["pass_at_1_low"] <= figures["pass_at_1"] <= figures["pass_at_2"] <= 1
        assert figures["problems"] == 12 and 0 < figures["response_length"] <= 6
    assert summary["verdict"].startswith("no difference shown between sft and rl")
    responses = list(read_jsonl(Path("reports/evaluate/responses.jsonl")))
    assert len(responses) == 3 * 12 * 2
    for name in ("accuracy", "pass_at_k", "levels"):
        assert (run.artifacts / f"{name}.png").stat().st_size > 5_000
    assert len(json.loads((run.artifacts / "examples.json").read_text())) == 12
    # base and sft are the same weights here: sampled once, and so equal.
    texts = {m: [r["response"] for r in responses if r["model"] == m] for m in ("base", "sft", "rl")}
    assert texts["base"] == texts["sft"] != texts["rl"]

    figures = evaluate_once("models/rl", "test", params, Path("out"))
    assert figures.pass_at_1.mean == summary["models"]["rl"]["pass_at_1"]
    assert figures.prompts_too_long == 0
    # The same weights under another name: the same responses.
    shutil.copytree("models/rl", "models/exported")
    evaluate_once("models/exported", "test", params, Path("renamed"))
    for folder in ("out", "renamed"):
        assert [row["response"] for row in read_jsonl(Path(folder) / "responses.jsonl")] == texts["rl"]
    assert figures.verifier is None

    # With a judge model whose endpoint is down: the rules' verdicts, and what it could not be asked is counted.
    monkeypatch.setattr("mathrl.rewards.model_judge.WAIT_SECONDS", 0)
    judge = {"endpoint": "http://127.0.0.1:9/v1", "model": "m", "asked": "all", "on_failure": "rule"}
    settings = params.evaluate.model_copy(
        update={"extraction": "lenient", "model_verifier": ModelVerifier.model_validate(judge)}
    )
    evaluate_once("models/rl", "test", params.model_copy(update={"evaluate": settings}), Path("judged"))
    verifier = EvaluationSummary.read(Path("judged/summary.json")).models["rl"].numbers()
    assert verifier["verifier/tier/rule"] > 0.5 and verifier["verifier/model_judged"] == 0.0
    assert verifier["verifier/model_failed"] > 0 and verifier["verifier/graded"] == 24


def test_the_manifest_has_digest_and_rows_of_all_that_was_read_and_written(params: Params, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    for name in ("a", "b"):  # the same name in two folders
        (folder / name).mkdir(parents=True)
        rows = [{"question": f"What is {i} and {name}?", "answer": "1"} for i in range(3)]
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {}]))
    sources = (
        "curate.sources=[{type: file, name: own, path: rows, split: rl, limit: 5}, "
        "{type: generated, name: made, generator: fractions, counts: {test: 4}}]"
    )
    given = load_params(
        PARAMS, overrides=[*SMALL, sources.replace("path: rows", f"path: {folder}"), "curate.on_bad_row=reject"]
    )
    curate.work(start("curate", given))
    manifest = read_json(Path("data/curated/manifest.json"))
    own, made = manifest["inputs"]
    assert own["limit"] == 5 and {name: file["rows"] for name, file in own["files"].items()} == {
        "a/train.jsonl": 4,
        "b/train.jsonl": 4,
    }
    for name, file in own["files"].items():
        assert file["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert (made["generator"], made["version"], made["rows"]) == ("fractions", VERSIONS["fractions"], 4)
    assert set(manifest["outputs"]) == {
        f"{name}.jsonl" for name in ("sft", "rl", "dev", "test", "dropped", "rejected", "hits", "variants", "quality")
    }
    for name, file in manifest["outputs"].items():
        content = (Path("data/curated") / name).read_bytes()
        assert file == {"sha256": hashlib.sha256(content).hexdigest(), "rows": content.count(b"\n")}
    assert manifest["outputs"]["rl.jsonl"]["rows"] == 5
    rejected = list(read_jsonl(Path("data/curated/rejected.jsonl")))
    assert [row["where"] for row in rejected] == ["a/train.jsonl, line 4", "b/train.jsonl, line 4"]
    assert all("field 'question'" in row["reason"] for row in rejected)


def test_an_interrupted_difficulty_goes_on_from_its_last_chunk(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathrl.rollout.sampler import Sampler

    curate.work(start("curate", params))
    models(params)
    difficulty.work(start("whole", params))
    shutil.rmtree(Path("home/state/pass_rates"))
    whole = Path("data/difficulty/pass_rates.jsonl").read_bytes()

    sample, calls = Sampler.sample, []

    def counted(self: Sampler, problems: Any, *rest: Any) -> Any:
        calls.append(len(problems))
        if stop_at and len(calls) == stop_at:
            raise KeyboardInterrupt
        return sample(self, problems, *rest)

    monkeypatch.setattr(Sampler, "sample", counted)
    stop_at, run = 3, start("cut", params)
    with pytest.raises(KeyboardInterrupt):
        difficulty.work(run)
    assert calls == [4, 4, 4]
    (partial,) = run.state.glob("*.jsonl")
    partial.write_text(partial.read_text() + '{"chunk": 2, "groups": [[{"resp')  # a write cut short
    calls.clear()
    stop_at = 0
    difficulty.work(run)
    assert calls == [4, 4, 4]  # chunks 2, 3 and 4 of 5
    assert Path("data/difficulty/pass_rates.jsonl").read_bytes() == whole


def test_what_was_measured_is_not_measured_again(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathrl.rollout.sampler import Sampler

    curate.work(start("curate", params))
    models(params)
    sample, calls = Sampler.sample, []

    def counted(self: Sampler, problems: Any, *rest: Any) -> Any:
        calls.append(len(problems))
        return sample(self, problems, *rest)

    monkeypatch.setattr(Sampler, "sample", counted)

    def measured(number: int, *overrides: str) -> int:
        """How many problems were sampled."""
        calls.clear()
        run = start(f"run{number}", load_params(PARAMS, overrides=[*SMALL, *overrides]))
        difficulty.work(run)
        assert run.record.summary["measured_before"] + sum(calls) == run.record.summary["problems"]
        return sum(calls)

    assert measured(0) == 20
    outputs = [file.read_bytes() for file in sorted(Path("data/difficulty").iterdir())]
    assert measured(1) == 0 and [file.read_bytes() for file in sorted(Path("data/difficulty").iterdir())] == outputs
    assert measured(2, "difficulty.max_problems=24") == 4  # more problems: the further ones alone
    assert len(list(read_jsonl(Path("data/difficulty/pass_rates.jsonl")))) == 24
    assert measured(3, "difficulty.temperature=0.5") == 20  # another sampling
    assert measured(4, "run.seed=1") == 20
    make_base(params.model, Path("models/sft"), 9)
    assert measured(5) == 20  # another policy


def test_pass_rates_are_kept_by_all_that_they_depend_on(params: Params) -> None:
    make_base(params.model, Path("models/sft"), 0)
    others = [
        "rollout.engine=vllm",
        "rollout.engine=vllm_server rollout.servers.urls=[http://127.0.0.1:1]",
        "model.precision=bfloat16",
        "difficulty.samples=16",
        "difficulty.max_tokens=7",
        "difficulty.temperature=0.5",
        "run.seed=1",
        "prompt.response_prefix=<think>",
        "reward.extraction=lenient",
        "rollout.tool.kind=bubblewrap",
        "rollout.tool.kind=bubblewrap rollout.turns.max_calls=1",
        "rollout.tool.kind=bubblewrap rollout.tool.wall_seconds=1",
    ]
    more = [load_params(PARAMS, overrides=[*SMALL, *each.split()]) for each in others]

    def file(chosen: Params) -> Path:
        engine = choose_engine(chosen.rollout, chosen.model, CPU, False)
        return difficulty.rates_file(chosen, engine, Path("models/sft"), [])

    files = [file(chosen) for chosen in (params, *more)]
    assert len(set(files)) == 1 + len(others)
    same = load_params(
        PARAMS, overrides=[*SMALL, "rollout.max_sequences=8", "difficulty.max_problems=3", "rollout.turns.max_calls=1"]
    )
    assert file(same) == files[0]


def test_prompts_that_are_all_too_long_are_said_with_the_remedy(params: Params) -> None:
    curate.work(start("curate", params))
    models(params)
    short = load_params(PARAMS, overrides=[*SMALL, "prompt.max_tokens=2"])
    with pytest.raises(UserError, match=r"all 20 prompts are longer than prompt\.max_tokens"):
        difficulty.work(start("difficulty", short))
    assert not Path("data/difficulty").exists()


def test_a_missing_model_is_named(params: Params) -> None:
    curate.work(start("curate", params))
    with pytest.raises(UserError, match="models/base: it has no model"):
        evaluate.work(start("evaluate", params))


def test_a_dry_run_names_what_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATHRL_DATA", raising=False)
    lines = curate.resolve(load_params(PARAMS, preset="qwen2.5-0.5b-gsm8k"))
    assert lines[0] == "gsm8k → rl: hub openai/gsm8k (main), split train"
    assert lines[-1] == "benchmark math500 → test: hub HuggingFaceH4/MATH-500, split test"
    with pytest.raises(UserError, match="no benchmark 'gsm9k'"):
        curate.resolve(load_params(PARAMS, overrides=["evaluate.benchmarks=[gsm9k]"]))


def test_a_dry_run_looks_for_benchmarks_where_their_stage_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATHRL_DATA", raising=False)
    (tmp_path / "math500").mkdir()
    (tmp_path / "math500" / "test.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    overrides = ["evaluate.benchmarks=[math500]", f"evaluate.data_folder={tmp_path}"]
    overrides.append("rl.eval_benchmarks=[{name: math500, every: 20}]")
    of_evaluate, of_rl = curate.resolve(load_params(PARAMS, overrides=overrides))[-2:]
    assert str(tmp_path) in of_evaluate and "hub HuggingFaceH4/MATH-500" in of_rl


def test_every_rank_samples_equal_models_once(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank other than 0 gets no result; if it sampled the second folder, it would wait for rank 0 forever."""
    models(params)
    curate.work(start("curate", params))
    sampled = []
    monkeypatch.setattr("mathrl.evaluation.evaluate_model.evaluate_model", lambda f, *_, **__: sampled.append(f.name))
    folders = {name: Path("models") / name for name in ("base", "sft", "rl")}
    problems = read_problems(Path("data/curated/test.jsonl"))
    assert evaluate._evaluate_all(folders, problems, "test", params, [], None) == []
    assert sampled == ["base", "rl"]
