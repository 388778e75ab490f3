"""rl.engine verl for real: the whole pipeline by `mathrl run`, whose stage rl is verl's trainer on a CPU.

Only two things are not verl's own (verl_on_cpu.py): the platform, whose device is the CPU, and the server that samples,
in the place of vLLM's. Prefect, DVC, the other stages, MLflow and its registry are the real ones. The tests of that run
(marker verl_run) take about ten minutes: `make parity-verl`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import EXIT_USER_ERROR
from mathrl.core.hashing import digest_path
from mathrl.engines.verl_config import VerlFiles, hydra_overrides, verl_settings
from mathrl.params.schema import STAGES
from mathrl.tracking.batches import escape
from mathrl.tracking.lineage import way_back
from tests.imports.make_verl_run import ON_CPU, SMALL
from tests.platform.conftest import Checkout, copy_databases, make_checkout

pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parents[2]
RUN = "from mathrl.cli import main; main()"
VERL = ("rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant",
        "rl.optimizer.lr=0.005", "rl.optimizer.warmup_steps=0")  # fmt: skip
TINY = (
    "model.base.hidden_size=32", "model.base.intermediate_size=64", "model.base.layers=2",
    "model.base.heads=2", "model.base.alphabet=arithmetic", "run.processes=2",
    "sft.steps=12", "sft.tokens_per_step=256", "rl.steps=9", "rl.prompts_per_step=4", "rl.group_size=8",
    "rl.max_tokens=12", "rl.dev.every=4", "rl.dev.samples=1", "rl.checkpoint_every=3", "rl.min_pass_at_8=0",
    "reward.parts=[{type: overlong, options: {max_length: 12, buffer: 12}}]",
    "mix.components=[{source: chain, weight: 1}]",
    "curate.sources=[{type: generated, name: chain, generator: chain, counts: {sft: 60, rl: 16, dev: 6, test: 6}, "
    "options: {steps: [2, 3], notation: bare}}]", "curate.decontaminate=null", "curate.deduplicate.exact=false",
    "difficulty.max_tokens=12", "evaluate.samples=2", "evaluate.ks=[1, 2]", "evaluate.max_tokens=12",
)  # fmt: skip
# Of every kind of setting: verl's own loader takes them all.
CONFIGURED = (
    (),
    ("rl.loss=gspo", "rl.loss.aggregation=sequence_mean", "rl.kl.coef=0.01", "rl.minibatches=2", "rl.epochs=2"),
    ("rl.loss=cispo", "rl.advantage=dr_grpo", "rl.importance={type: masked}", "rl.loss.entropy_coef=0.01"),
    ("rl.loss=reinforce", "rl.advantage=rloo", "rl.kl={type: reward, coef: 0.1}"),
    ("rl.loss=dppo_tv", "rl.loss.cap=20", "rl.loss.aggregation=sequence_sum", "rl.importance=null"),
    ("rl.loss=sapo", "rl.loss.aggregation=sequence_mean", "rl.dev.temperature=0", "rl.engine.ray_address=auto"),
    ("rl.optimizer.schedule=cosine", "rl.optimizer.clip_norm=null", "rollout.vllm.tensor_parallel=2"),
)


def check(overrides: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    file = folder / "overrides.json"
    file.write_text(json.dumps(overrides))
    return subprocess.run(
        [sys.executable, "-m", "mathrl.engines.verl_driver", str(file), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_verls_own_loader_takes_the_settings(tmp_path: Path) -> None:
    from mathrl.engines.verl_driver import configuration

    files = VerlFiles(tmp_path / "a model's", tmp_path / "rows", tmp_path / "checkpoints")
    for overrides in CONFIGURED:
        params = load_params(ROOT / "params", overrides=[*VERL, *overrides])
        settings = verl_settings(params, files, longest_prompt=32, resume=None, attention="flash_attention_2")
        config = configuration(hydra_overrides(settings))
        for name, value in settings.items():
            made: Any = config
            for part in name.lstrip("+").split("."):
                made = made[part]
            assert made == value, name


@pytest.mark.parametrize(
    ("override", "words"), [("actor_rollout_ref.actor.clip=1", "clip"), ("actor_rollout_ref.rollout.mode=sync", "sync")]
)
def test_what_verl_refuses_is_one_line_before_anything_starts(tmp_path: Path, override: str, words: str) -> None:
    params = load_params(ROOT / "params", overrides=[*VERL])
    files = VerlFiles(tmp_path, tmp_path, tmp_path)
    settings = verl_settings(params, files, longest_prompt=32, resume=None, attention="sdpa")
    done = check(hydra_overrides(settings, [override]), tmp_path)
    assert done.returncode == EXIT_USER_ERROR
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: verl refuses its configuration: ") and words in line


@dataclass
class Pipeline:
    """A pipeline that Ctrl-C ended after verl's step 4, and that the same command brought to its end.

    `networks` are what gloo and NCCL listened on in each rank of verl. `saved` are the steps of the checkpoints in
    between and `left` is what still ran then; `output` is the second command's.
    """

    checkout: Checkout
    networks: list[tuple[str, ...]]
    saved: list[int]
    left: list[str]
    output: str

    @property
    def workspace(self) -> Path:
        """The worktree of the run, which both commands share."""
        (folder,) = (self.checkout.folder / "runs").iterdir()
        return folder

    @property
    def record(self) -> Path:
        (folder,) = (self.checkout.home / "records").glob("rl-*")
        return folder

    def runs(self) -> dict[str, dict[str, Any]]:
        """MLflow's runs by their stages."""
        found = self.checkout.mlflow_runs()
        named = {str(run["tags"].get("dvc.stage", "parent")): run for run in found}
        assert len(named) == len(found), "a stage has two runs"
        return named


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, empty_prefect: Path, empty_store: Path) -> Pipeline:
    folder = tmp_path_factory.mktemp("verl")
    checkout = make_checkout(folder / "checkout", replaced=())
    copy_databases(checkout, empty_prefect, empty_store)
    checkout.env |= {"OMP_NUM_THREADS": "1", "MATHRL_VERL_PYTHON": str(python_on_cpu(folder))}
    checkout.python(
        "from mathrl.compose import load_params, write_params; "
        f"write_params(load_params(), load_params(overrides={TINY!r}))"
    )
    checkout.commit_params("a model for two CPUs")
    settings = [*VERL, f"rl.engine.overrides=[{', '.join(map(repr, SMALL))}]"]
    words = [sys.executable, "-c", RUN, "run", "pipeline", *(word for one in settings for word in ("--set", one))]
    logs = folder / "first.log", folder / "again.log"
    with started(words, checkout, logs[0]) as first:
        while first.poll() is None and steps_logged(checkout) < 4:
            time.sleep(0.05)
        networks = networks_of_ranks(checkout.folder)
        os.killpg(first.pid, signal.SIGINT)  # as a terminal does
        first.wait()
    assert steps_logged(checkout) >= 4, logs[0].read_text()
    states = (checkout.home / "state").glob("rl-*/checkpoints/global_step_*")
    saved = sorted(int(state.name.split("_")[-1]) for state in states)
    deadline = time.monotonic() + 60
    while (left := running(checkout.folder)) and time.monotonic() < deadline:
        time.sleep(0.5)  # Prefect's server of the command ends last
    with started(words, checkout, logs[1]) as again:
        assert again.wait() == 0, logs[1].read_text()
    return Pipeline(checkout, networks, saved, left, logs[1].read_text())


def python_on_cpu(folder: Path) -> Path:
    """A Python of verl's own, as MATHRL_VERL_PYTHON names it."""
    variables = {**ON_CPU, "PYTHONPATH": str(Path(__file__).parent)}
    lines = [f"export {name}='{value}'" for name, value in variables.items()]
    file = folder / "python"
    file.write_text("\n".join(["#!/bin/sh", *lines, f"exec '{sys.executable}' \"$@\"", ""]))
    file.chmod(0o755)
    return file


@contextmanager
def started(words: list[str], checkout: Checkout, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The command with a terminal's session of its own; it does not outlive the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=checkout.folder, env=checkout.env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def steps_logged(checkout: Checkout) -> int:
    files = sorted((checkout.home / "records").glob("rl-*/metrics.jsonl"))
    return len(files[-1].read_text().splitlines()) if files else 0


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def rows_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    return read_rows(pipeline.workspace / "reports/rl/metrics.jsonl")


def running(folder: Path) -> list[str]:
    """Command lines of processes that have the folder in their environment."""
    return [command for command, _ in processes_of(folder)]


def networks_of_ranks(folder: Path) -> list[tuple[str, ...]]:
    """GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME of verl's ranks, Ray's workers."""
    names = (b"GLOO_SOCKET_IFNAME", b"NCCL_SOCKET_IFNAME")
    return [
        tuple(environment.get(name, b"").decode() for name in names)
        for command, environment in processes_of(folder)
        if command.startswith("ray::WorkerDict")
    ]


def processes_of(folder: Path) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    """Command lines and environments of the processes that have the folder in theirs."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
        if str(folder).encode() in environment and int(process.name) != os.getpid():
            yield command, dict(line.split(b"=", 1) for line in environment.split(b"\0") if b"=" in line)


@pytest.mark.verl_run
def test_the_ranks_of_verl_listen_on_loopback_alone(pipeline: Pipeline) -> None:
    assert pipeline.networks == [("lo", "lo")] * 2


@pytest.mark.verl_run
def test_a_stopped_run_leaves_a_checkpoint_and_no_process(pipeline: Pipeline) -> None:
    assert 3 in pipeline.saved, pipeline.saved
    assert pipeline.left == []


@pytest.mark.verl_run
def test_the_run_goes_on_with_a_row_per_step(pipeline: Pipeline) -> None:
    rows = rows_of(pipeline)
    assert [row["step"] for row in rows] == list(range(1, 10))
    names = {"reward/overlong", "reward/accuracy", "response_length", "rollout/zero_variance_share", "verifier/graded",
             "actor_loss", "entropy", "grad_norm", "clip_fraction", "trained_tokens"}  # fmt: skip
    assert all(names <= row.keys() for row in rows), [names - row.keys() for row in rows]
    # The reward is minus the share of 12 tokens that a response takes, and 4 x 8 responses are graded per step.
    assert all(row["response_length"] == pytest.approx(-12 * row["reward/overall"], abs=1e-5) for row in rows)
    assert all(row["verifier/graded"] == 32 for row in rows)
    # What verl itself measures of the same responses.
    for row in rows:
        assert row["verl/critic/score/mean"] == pytest.approx(row["reward/overall"], abs=1e-5)
        assert row["verl/response_length/mean"] == pytest.approx(row["response_length"], abs=1e-5)
    assert [row["step"] for row in rows if "dev/accuracy" in row] == [4, 8, 9]
    summary = json.loads((pipeline.record / "run.json").read_text())["summary"]
    assert summary["sampled_tokens"] == round(sum(32 * row["response_length"] for row in rows))


@pytest.mark.verl_run
def test_the_sampler_has_the_trainers_weights(pipeline: Pipeline) -> None:
    """verl compares the log-probs that it sampled with its own."""
    for row in rows_of(pipeline):
        assert row["verl/training/rollout_probs_diff_max"] < 0.05


@pytest.mark.verl_run
def test_the_model_is_a_plain_folder_that_has_learned(pipeline: Pipeline) -> None:
    rows, models = rows_of(pipeline), pipeline.workspace / "models"
    assert sum(row["reward/overall"] for row in rows[-2:]) > sum(row["reward/overall"] for row in rows[:2]) + 0.2
    config = json.loads((models / "rl/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (models / "rl/model.safetensors").read_bytes() != (models / "sft/model.safetensors").read_bytes()
    assert not list((pipeline.checkout.home / "state").glob("rl-*/")), "the state is removed on success"


@pytest.mark.verl_run
def test_the_torch_engine_evaluates_what_verl_has_trained(pipeline: Pipeline) -> None:
    summary = json.loads((pipeline.workspace / "reports/summary.json").read_text())
    models = summary["models"]
    assert {name: model["problems"] for name, model in models.items()} == {"base": 6, "sft": 6, "rl": 6}
    evaluate = pipeline.runs()["evaluate"]
    assert evaluate["tags"]["resolved.rollout.engine"] == "torch"
    for name, model in models.items():
        for figure in ("pass_at_1", "response_length"):
            assert evaluate["metrics"][f"final/{name}/{figure}"] == pytest.approx(model[figure])
    # Its reward was for short responses.
    assert models["rl"]["response_length"] < models["sft"]["response_length"] - 3


@pytest.mark.verl_run
def test_mlflow_has_the_run_of_verl_as_its_record_has_it(pipeline: Pipeline) -> None:
    runs = pipeline.runs()
    assert sorted(runs) == sorted([*STAGES, "parent"])
    assert {run["status"] for run in runs.values()} == {"FINISHED"}
    parent, rl = runs["parent"], runs["rl"]
    assert {run["tags"]["mlflow.parentRunId"] for name, run in runs.items() if name != "parent"} == {parent["id"]}
    assert rl["tags"]["mathrl.record"] == pipeline.record.name
    rows = read_rows(pipeline.record / "metrics.jsonl")  # with its times
    for name in {name for row in rows for name in row} - {"step", "at"}:
        history = rl["client"].get_metric_history(rl["id"], escape(name))
        expected = {row["step"]: row[name] for row in rows if name in row}
        history.sort(key=lambda point: point.timestamp)
        # Step 4, which was done again, has two points: verl does not repeat it to the bit.
        assert {point.step: point.value for point in history} == pytest.approx(expected, nan_ok=True), name
    assert (
        rl["params"]["rl.engine.type"] == parent["params"]["rl.engine.type"] == "verl"
        and rl["params"]["rl.optimizer.lr"] == "0.005"
    )
    assert json.loads(rl["params"]["rl.engine.overrides"]) == [*SMALL]
    assert rl["tags"]["resolved.rollout.engine"] == "vllm" and rl["tags"]["health"] in ("green", "yellow", "red")
    best = max(row["dev/accuracy"] for row in rows if "dev/accuracy" in row)
    assert parent["metrics"]["dev/best"] == rl["metrics"]["final/dev/best"] == best
    assert parent["metrics"]["rl/pass_at_1"] == runs["evaluate"]["metrics"]["final/rl/pass_at_1"]


@pytest.mark.verl_run
def test_the_registered_version_leads_back_through_verl_to_the_problems(pipeline: Pipeline) -> None:
    assert "mathrl-chain version 1" in pipeline.output
    client = pipeline.runs()["register"]["client"]
    back = way_back(client, "mathrl-chain@candidate")
    assert back.gaps() == [] and {step.stage for step in back.steps} == {*STAGES}
    maker = back.maker()
    assert maker is not None and maker.stage == "rl" and maker.params["rl.engine.type"] == "verl"
    assert back.digest == digest_path(pipeline.workspace / "models/rl")
    said = pipeline.checkout.mathrl("models", "lineage", "mathrl-chain").stdout
    assert "param rl.engine.type = verl" in said and f"complete: {len(STAGES)} runs" in said
