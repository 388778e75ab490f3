"""A small pipeline of real stages: stopped by a cluster, evaluated on several benchmarks, drawn."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from mathrl.tasks.live_progress import Console
from mathrl.tasks.repro import Preempted, Repro, end_with_block
from tests.platform.conftest import make_dvc_folder

Checkout = Any
ROOT = Path(__file__).parents[2]
RUN = "from mathrl.cli import main; main()"
pytestmark = pytest.mark.timeout(900)
TINY = (
    "run.processes=1", "run.device=cpu", "model.base.hidden_size=16", "model.base.intermediate_size=16",
    "model.base.layers=1", "model.base.heads=2", "model.precision=float32", "sft.steps=60",
    "sft.tokens_per_step=128", "sft.checkpoint_every=20", "curate.sources=[{type: generated, name: chain, "
    "generator: chain, counts: {sft: 64, rl: 8, dev: 8, test: 8}, options: {steps: [2], notation: bare}}]",
    "curate.decontaminate=null", "curate.deduplicate.exact=false",
)  # fmt: skip


# SFT stands still after step 30 while the file $HELD exists.
HOLD = """
def hold() -> None:
    import os, time
    from mathrl.core.metrics import JsonlSink
    log = JsonlSink.log
    def held_log(self, step, metrics):
        log(self, step, metrics)
        while step == 30 and Path(os.environ.get("HELD", "/none")).exists():
            time.sleep(0.01)
    JsonlSink.log = held_log

hold()
"""
SMALLEST: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def tiny(real_checkout: Checkout, warm_python: Path) -> Checkout:
    real_checkout.python(
        "from mathrl.compose import load_params, write_params; "
        f"write_params(load_params(), load_params(overrides={TINY!r}))"
    )
    stage = real_checkout.folder / "mathrl" / "stages" / "sft.py"
    stage.write_text(stage.read_text().replace("\nif __name__", f"{HOLD}\nif __name__"))
    real_checkout.env |= {"MATHRL_MIRROR": "none", "OMP_NUM_THREADS": "1"}
    real_checkout.use_python(warm_python)
    return real_checkout


def test_a_dry_run_holds_lengths_against_the_curated_splits(tiny: Checkout, tmp_path: Path) -> None:
    """The source is generated, so only data/curated has the texts: the questions take from 6 characters."""
    make_base(Model(base=FreshModel(**SMALLEST, max_positions=64), precision="float32"), tmp_path / "start", 0)
    base = f"model.base={{type: pretrained, path: {tmp_path / 'start'}}}"
    words = [
        "run",
        "difficulty",
        "--dry-run",
        "--set",
        base,
        "--set",
        "sft.steps=0",
        "--set",
        "difficulty.max_tokens=32",
        "--set",
        "curate.sources.0.options.notation=bare",
    ]
    words += ["--set", "prompt.template=r1_zero", "--set", "prompt.max_tokens=16"]
    tiny.repro("curate")
    assert "warning: prompt.max_tokens is 16, and 100.0% of 8 prompts of the data" in tiny.mathrl(*words).stdout
    other = tiny.mathrl(*words, "--set", "run.seed=5").stdout  # whose splits are not made yet: the source is drawn
    assert "would run: curate -> sft -> difficulty\n" in other and "of the data are longer" in other
    assert "would run: sft -> difficulty; up to date: curate\n" in tiny.mathrl(*words[:3]).stdout


def facts(checkout: Checkout) -> dict[str, Any]:
    """The record of the sft run, with its rows of metrics; empty before there is one."""
    for file in (checkout.home / "records").glob("sft-*/run.json"):
        rows = (
            (file.parent / "metrics.jsonl").read_text().splitlines() if (file.parent / "metrics.jsonl").exists() else []
        )
        return json.loads(file.read_text()) | {"rows": len(rows)}
    return {}


def test_a_preempted_stage_goes_on_by_itself_to_the_same_bits(tiny: Checkout, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    flow = subprocess.Popen(
        [tiny.executable, "-c", RUN, "run", "sft"],
        cwd=tiny.folder,
        env=tiny.env | {"HELD": str(held)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while facts(tiny).get("rows", 0) < 30:
            assert flow.poll() is None, "no training"
            time.sleep(0.02)
        preempted = facts(tiny)["pid"]
        os.kill(preempted, signal.SIGTERM)
        held.unlink()
        said = flow.communicate()[0]
    finally:
        flow.kill()
    assert flow.returncode == 0, said
    assert "SIGTERM: stopping at the next step boundary" in said
    assert "sft: stopped before it was done, without an error; starting it again, it resumes" in said
    assert facts(tiny)["pid"] != preempted and facts(tiny)["rows"] == 60, "one record, each step once"
    lock = (tiny.folder / "dvc.lock").read_text()
    tiny.repro("--force", "--single-item", "sft")
    assert (tiny.folder / "dvc.lock").read_text() == lock, "a run that nobody stopped makes the same bytes"


@pytest.mark.parametrize(
    ("script", "again"),
    [
        ("import os; os.kill(os.getpid(), 15)", True),
        ("import os; os.kill(os.getpid(), 9)", False),
        ("import time; time.sleep(60)", False),
    ],
    ids=["terminated", "killed", "ended by the flow"],
)
def test_only_what_others_stopped_is_started_again(
    tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch, script: str, again: bool
) -> None:
    """SIGKILL is left alone: it may be the kernel's for want of memory, which would happen again."""
    make_dvc_folder(tmp_path, {"one": {"cmd": f"python -c '{script}'", "always_changed": True}})
    if again:  # else a signal must meet Python itself
        monkeypatch.setattr(sys, "executable", str(warm_python / "python"))
    path = str(Path(sys.prefix) / "bin") + os.pathsep + os.environ["PATH"]
    repro = Repro(tmp_path, "one", os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}, lambda text: None)
    if "sleep" in script:
        repro.events.get()  # it has started
        repro.stop()
    with pytest.raises(ValueError) as caught:
        repro.follow("one")
    assert isinstance(caught.value, Preempted) is again is repro.stopped


def follow_one(folder: Path) -> str:
    """What is shown while the folder's stage `one` runs."""
    shown: list[str] = []
    with end_with_block(Repro(folder, "one", os.environ | {"PYTHONPATH": str(ROOT)}, shown.append)) as repro:
        repro.follow("one")
        repro.finish("one")
    return "".join(shown)


def test_a_lock_file_that_a_kill_left_half_written_is_written_anew(tmp_path: Path, forked_programs: None) -> None:
    (tmp_path / "print.sh").write_text("printf 'na\\303'; sleep 0.3; printf '\\257ve\\n'; echo 1 > one\n")
    make_dvc_folder(tmp_path, {"one": {"cmd": "sh print.sh", "outs": ["one"]}})
    shown = follow_one(tmp_path)
    assert "half written" not in shown and "naïve\n" in shown, "a character that comes in two pieces is whole"
    lock = tmp_path / "dvc.lock"
    whole = lock.read_text()
    lock.write_text(whole[:100])
    assert follow_one(tmp_path).startswith("dvc.lock was half written")
    assert lock.read_text() == whole


def test_a_further_benchmark_is_the_only_one_that_is_evaluated(tiny: Checkout) -> None:
    """The recipe suite: a step for each model and benchmark, and one table of both."""
    tiny.python(
        "from mathrl.compose import load_params, write_params; "
        "write_params(load_params(), load_params(overrides=['evaluate.samples=2', 'evaluate.ks=[1, 2]', "
        "'evaluate.max_tokens=6']))"
    )
    tiny.replace_param("recipes/suite.yaml", "[models/sft, models/rl]", "[models/sft]")
    file = "pipelines/recipes/suite/dvc.yaml"
    assert f"dvc repro {file}" in tiny.mathrl("recipe", "suite", "--graph").stdout
    assert f"Running stage '{file}:each-test-sft'" in tiny.repro(file).stdout
    shown = json.loads(tiny.run("dvc", "metrics", "show", "--json", "pipelines/recipes/suite/summary.json").stdout)
    figures = shown[""]["data"]["pipelines/recipes/suite/summary.json"]["data"]
    assert figures["each"]["test"]["models"]["sft"]["problems"] == 8
    tiny.replace_param("recipes/suite.yaml", "[test]", "[test, gsm8k]")
    tiny.mathrl("recipe", "suite", "--graph")
    would = tiny.repro("--dry", f"{file}:each-test-sft", f"{file}:each-gsm8k-sft").stdout
    assert f"'{file}:each-test-sft' didn't change" in would
    assert f"Running stage '{file}:each-gsm8k-sft'" in would


def test_a_failure_is_one_line_and_an_empty_split_none(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console("Running stage 'rl':\n> python -m mathrl.stages.rl\nWARNING: 'data/curated/sft.jsonl' is empty.\n")
    console("error: no model\nERROR: failed to reproduce 'rl': failed to run: python, exited with 2\n")
    written = capsys.readouterr().err
    assert written == "Running stage 'rl':\n> python -m mathrl.stages.rl\n"  # the command itself ends with the error
    console("Running stage 'rl':\n")  # it goes on after all: nothing is lost
    assert capsys.readouterr().err == "error: no model\nRunning stage 'rl':\n"
    for piece in ("\rrl: 1/2", "\rrl: 2/2", "\n", "Running stage 'evaluate':\n", "\rbar", "\rbar: 1\n", "done\n"):
        console(piece)
    written = capsys.readouterr().err
    assert written == "\rrl: 1/2\rrl: 2/2\nRunning stage 'evaluate':\n\rbar\rbar: 1\ndone\n", "a bar ends its line"
