"""The stage rl: what it trains with and writes, setting by setting; what it refuses; how it goes on after a kill."""

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from mathrl.core.files import write_json
from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.types import read_problems, write_problems
from mathrl.reports.html_figures import curves
from mathrl.rollout.launch import GLOO, NCCL
from mathrl.rollout.rollout_files import rollout_files
from mathrl.trainers import rl as trainer
from tests.stages.rl_runs import CASES, FILE, differences, prepare, record_of, run, written

OWN = {"AutoConfig": "owned.OwnedConfig", "AutoModelForCausalLM": "owned.OwnedModel"}
CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM
class OwnedConfig(Qwen2Config):
    model_type = "owned"
class OwnedModel(Qwen2ForCausalLM):
    config_class = OwnedConfig
"""
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


class Killed(BaseException):
    """What cuts a run off as a kill does: no checkpoint is written after it."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the prepared inputs, which is the present one."""
    for path in prepared.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MATHRL_MIRROR", "none")
    for name in (GLOO, NCCL):  # which a stage sets for its process, which here is that of other tests too
        monkeypatch.setenv(name, "lo")
    return tmp_path


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has a run be killed when it is to log this step."""
    log = JsonlSink.log

    def set_step(step: int) -> None:
        def logs(self: JsonlSink, logged: int, metrics: Any) -> None:
            if logged == step:
                raise Killed
            log(self, logged, metrics)

        monkeypatch.setattr(JsonlSink, "log", logs)

    return set_step


def refused(name: str, capsys: pytest.CaptureFixture[str], *settings: str, others: list[str] | None = None) -> str:
    """The error of a run that ends with 2."""
    with pytest.raises(SystemExit) as ended:
        run(name, settings, others)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_a_run_writes_what_it_wrote_before(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = differences(written(run(name)), GOLDEN[name])
    assert not found, "\n".join([*found, "If it is meant: python -m tests.stages.rl_runs --write"])
    assert ("rl.keep_rollouts: " in capsys.readouterr().out) == ("rollouts.parquet" in GOLDEN[name]["files"])


def test_a_run_whose_weights_an_engine_did_not_measure_has_no_accuracy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, folders = trainer.train, []

    def unmeasured(inputs: Any) -> Any:
        folders.append(inputs.folder)
        trained = train(inputs)
        return replace(trained, result=replace(trained.result, dev_accuracy=None))

    monkeypatch.setattr(trainer, "train", unmeasured)
    found = written(run("no evaluation", ["rl.steps=1"]))
    assert [(folder / "run.json").is_file() for folder in folders] == [True], "an engine's own output is in the record"
    assert "accuracy on dev problems not measured." in found["card"] and "dev/accuracy" not in found["summary"]


def test_health_judges_the_run_by_its_settings(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The KL to another model is high from the first step on, which is red where the learning rate is high."""
    settings = ["rl.dev.every=0", "health.action=stop", "health.kl=1e-6"]
    said = refused("a reference", capsys, *settings, "health.lr=0.004")
    assert "stopped at step 1 since health.action is stop: KL to the reference is " in said
    assert run("a reference", ["rl.steps=1", *settings, "health.lr=0.006"]).exists()


def test_code_that_comes_with_models_runs_where_it_is_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(place / "modules"))
    for name in ("start", "teacher"):
        original = (place / name).resolve()
        (place / name).unlink()
        shutil.copytree(original, place / name)
        told = json.loads((place / name / "config.json").read_text())
        write_json(place / name / "config.json", told | {"model_type": "owned", "auto_map": OWN})
        (place / name / "owned.py").write_text(CODE)
    base = "model.base={type: pretrained, path: start, trust_remote_code: %s}"
    settings = ["rl.steps=1", "rl.dev.every=0", "rl.max_tokens=128", "rl.optimizer.lr=1e-5"]
    assert run("tokens of a teacher", [*settings, base % "true"]).exists()
    assert "set model.base.trust_remote_code" in refused("tokens of a teacher", capsys, *settings, base % "false")


def test_no_two_settings_train_alike() -> None:
    """A folder beside the start that were not read would leave the metrics as they are without it."""
    assert list(GOLDEN) == list(CASES), "python -m tests.stages.rl_runs --write"
    for name in CASES:
        for other in CASES:
            assert name == other or differences(GOLDEN[name]["metrics"], GOLDEN[other]["metrics"]), (name, other)


def test_the_engine_is_chosen_for_the_longest_sequence_and_told_of_adapters(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine in this process has no need of, and servers have."""
    asked: dict[str, Any] = {}

    def watch(module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(*given: Any, **named: Any) -> Any:
            asked[name] = given, named
            return real(*given, **named)

        monkeypatch.setattr(module, name, watched)

    watch(trainer, "resolve_rollout")
    watch(trainer, "training_engine")
    watch(trainer, "check_prompts")
    watch(trainer, "check_experts")
    settings = ["rl.steps=1", "rl.dev.every=0", "prompt.max_tokens=50", "rl.lora={r: 2}"]
    run("continuations of steps", settings)
    (rollout, start, model, hardware), named = asked["resolve_rollout"]
    assert (start, model.precision, hardware.is_gpu) == (Path("start"), "float32", False)
    assert rollout.engine == "auto" and named == {"longest": 50 + 2 * 8, "ranks": 1}
    (network, folder, tokenizer, model, rollout, ahead, lora), named = asked["training_engine"]
    assert (folder, model.precision, rollout.engine, ahead, named) == (Path("start"), "float32", "torch", False, {})
    assert lora.r == 2 and len(tokenizer) == network.config.vocab_size
    (problems, prompt, render), _ = asked["check_prompts"]
    assert render is tokenizer and (len(problems), prompt.max_tokens) == (10, 50), (
        "prompts as the tokenizer renders them"
    )
    (config, rl, checked), _ = asked["check_experts"]
    assert config is network.config and checked is rollout and rl.lora == lora


def test_a_reference_has_no_gradients(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    references: list[Any] = []
    real = trainer.train_rl

    def watched(*given: Any) -> Any:
        references.append(given[-1].reference)
        return real(*given)

    monkeypatch.setattr(trainer, "train_rl", watched)
    run("a reference", ["rl.steps=1", "rl.dev.every=0"])
    assert not any(weight.requires_grad for weight in references[0].parameters())


def test_a_killed_run_goes_on_to_the_same_bits_and_says_which_rollouts_are_lost(
    place: Path, kill_at: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "few-shot examples, kept rollouts"
    whole = run(name)
    weights, figures = (whole / "model/model.safetensors").read_bytes(), written(whole)
    rows = pq.read_table(whole / "report/rollouts.parquet")
    assert rows.num_rows == 2 * 4 * 4
    for lost in (False, True):
        kill_at(2)
        with pytest.raises(Killed):
            run(name)
        assert record_of(whole)["status"] == "failed"
        (state,) = (place / "home/state").glob("r-*/")
        assert list(state.glob("checkpoint*")), "step 1 is kept"
        if lost:
            (folder,) = (file.parent for file in (place / "home/records").glob("*/rollouts/*1.parquet"))
            rollout_files(folder)[0].unlink()
        kill_at(0)
        run(name)
        assert (whole / "model/model.safetensors").read_bytes() == weights
        said = f"{'rollouts'} lost the rollouts of 1 steps" in capsys.readouterr().err
        assert said == lost
        assert written(whole) == figures
        assert (pq.read_table(whole / "report/rollouts.parquet") == rows) != lost


def test_the_start_must_solve_a_share_of_the_problems_in_eight_tries(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused("alone", capsys, "rl.min_pass_at_8=0.51")
    assert "difficulty: the pass@8 of the model that RL starts from is 0.500, below rl.min_pass_at_8 = 0.51" in said
    assert not Path("pipelines").exists()
    write_json(place / "difficulty", {"pass_at_8": 0.51})
    assert run("alone", ["rl.min_pass_at_8=0.51"]).exists()


@pytest.mark.parametrize("engine", ["trl", "verl"])
def test_other_engines_take_no_model_beside_the_policy(
    engine: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATHRL_VERL_PYTHON", "true")  # a program that names no missing package
    settings = {
        "trl": ["rl.advantage.eps=1e-4"],
        "verl": ["rl.advantage.eps=1e-6", "rl.optimizer.schedule=constant", "run.device=auto"],
    }[engine]
    said = refused("alone", capsys, f"rl.engine={engine}", *settings, others=["difficulty", "teacher", "reference"])
    assert f"rl.engine is {engine}, which takes part in no run with another model (reference, teacher): set" in said


def test_a_prompt_that_gives_its_answer_away_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("second.jsonl", "dev.jsonl"):
        rows = list(read_problems(Path(file)))
        Path(file).unlink()
        write_problems(Path(file), [rows[0].with_(question="the answer is 5. 2+3="), *rows[1:]])
        assert "its answer, marked as the answer" in refused("alone", capsys)
        Path(file).unlink()
        write_problems(Path(file), rows)


def test_a_teacher_that_reads_other_token_ids_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = place / "teacher/tokenizer.json"
    kept = other.read_text(encoding="utf-8")
    rows = json.loads(kept)
    vocabulary = rows["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    other.write_text(json.dumps(rows), encoding="utf-8")
    try:
        said = refused("tokens of a teacher", capsys)
    finally:
        other.write_text(kept, encoding="utf-8")
    assert "the teacher teacher has another tokenizer than start (token '" in said and "recipe distillation" in said


def test_who_samples_ahead_on_a_cpu_leaves_half_of_the_threads_to_the_trainer(place: Path) -> None:
    threads = torch.get_num_threads()
    try:
        for staleness, left in ((0, 4), (1, 2)):
            torch.set_num_threads(4)
            run("alone", [f"rl.asynchronous={{staleness: {staleness}, pace: fixed}}"])
            assert torch.get_num_threads() == left
    finally:
        torch.set_num_threads(threads)


def test_benchmarks_of_the_run_are_read_checked_and_drawn(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(5)]
    (place / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watched = json.dumps([{"name": str(place / "exam.jsonl"), "every": 1, "limit": 3}])
    metrics = without_timings(run("no evaluation", [f"rl.eval_benchmarks={watched}"]) / "report/metrics.jsonl")
    assert [row["eval/exam.jsonl/problems"] for row in metrics] == [3, 3]
    charts = {chart.title: base64.b64decode(chart.picture.split(",")[1]).decode() for chart in curves(metrics)}
    assert "exam.jsonl" in charts["Accuracy"] and "dev" in charts["Accuracy"]
    missing = f"rl.eval_benchmarks={json.dumps([{'name': 'gsm9k'}])}"
    assert "no benchmark 'gsm9k' (did you mean gsm8k?)" in refused("no evaluation", capsys, missing)
