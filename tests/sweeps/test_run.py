"""Studies of the real trainer on a tiny model: stopped, killed, ended early, compared, promoted."""

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.params import load_params
from mathrl.sweeps.claim import claim
from mathrl.sweeps.lease import LEASE
from mathrl.sweeps.objective import run_trial
from mathrl.sweeps.report import write_report
from mathrl.sweeps.space import distribution
from mathrl.sweeps.study import open_study, read_study
from mathrl.sweeps.worker import sweep_section

Place = Any
pytestmark = pytest.mark.timeout(600)  # trainers start some ten times; on a busy machine that takes a while
STEPS = 30
SWEEP = (sys.executable, "-m", "mathrl.sweeps.run", "run")


def wait(until: Callable[[], Any], seconds: float = 240.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


def steps_of(run: Path) -> list[int]:
    """The steps in a run's live metrics; [] before there is one."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines]


def test_stopped_and_then_killed_a_study_goes_on_where_it_was(place: Place) -> None:
    words = ["sweep.study=killed", "sweep.trials=2", "sweep.workers=2", f"rl.steps={STEPS}",
             "rl.eval_samples=1", "rl.checkpoint_every=3", "rl.eval_every=2"]  # fmt: skip
    folder = place.home / "sweeps" / "killed"
    runs = [folder / f"t{number:04d}-s0" for number in range(2)]

    # Stopped as a cancelled flow does it: the guard's standard input is closed.
    first = place.start("tasks.guard", *SWEEP, *words)
    wait(lambda: all(len(steps_of(run)) > 2 for run in runs))
    leases = [trial.user_attrs[LEASE] for trial in read_study("killed").trials]
    pids = [pid for lease in leases for pid, _ in (lease["worker"], *lease["below"])]
    assert len(leases) == 2 and len(pids) >= 6
    asked = time.monotonic()
    said = first.communicate(timeout=60)[0]
    assert time.monotonic() - asked < 25 and first.returncode == 130, said
    assert not [pid for pid in pids if psutil.pid_exists(pid)], "nothing of it may live on"
    stopped, before = time.time(), steps_of(runs[1])
    assert [t.state for t in read_study("killed").trials] == [TrialState.RUNNING] * 2

    # Started again; now a worker is killed, and the other takes over its trial.
    again = place.start("mathrl.sweeps.run", "run", *words)
    wait(lambda: len(steps_of(runs[1])) > len(before))
    os.kill(read_study("killed").trials[1].user_attrs[LEASE]["worker"][0], signal.SIGKILL)
    said = again.communicate(timeout=240)[0]
    assert again.returncode == 0, said
    trials = read_study("killed").trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    for number, (trial, run) in enumerate(zip(trials, runs, strict=True)):
        assert steps_of(run) == list(range(1, STEPS + 1)), "a step that is lost, or done twice"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rows[0]["at"] < stopped, "it resumed, and did not begin anew"
        curve = {row["step"]: row["dev/accuracy"] for row in rows if "dev/accuracy" in row}
        assert trial.intermediate_values == curve and trial.value == curve[STEPS]
        assert len(list((place.home / "records").glob(f"killed-t{number:04d}-s0-*"))) == 1
        assert not (run / "model").exists() and (run / "report" / "curve.png").exists()
    assert len([line for line in said.splitlines() if line.startswith("trial ")]) == 2, said
    assert not list((place.home / "state").glob("killed-*"))
    assert {file.name for file in folder.glob("*.png")} >= {"best.png", "slices.png"}


def test_mlflow_has_one_run_a_trial_under_the_studys(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the study above, uploaded late: the seeds' runs find their trials all the same."""
    from mathrl.tracking.client import connect
    from mathrl.tracking.mirror import sync

    if not (place.home / "sweeps" / "killed").exists():
        pytest.skip("the study of the test above")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    sync()
    client, experiment = connect()
    runs = {run.info.run_id: run for run in client.search_runs([experiment])}
    (study,) = [run for run in runs.values() if run.data.tags.get("mathrl.role") == "study"]
    assert study.info.run_name.startswith("sweep killed-") and "sweep.trials" in study.data.params
    below = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == study.info.run_id]
    assert sorted(run.info.run_name for run in below) == [f"killed/t{number:04d}" for number in range(2)]
    trials = read_study("killed").trials
    for run in below:
        trial = trials[int(run.info.run_name[-4:])]
        assert run.data.params["rl.kl_coef"] == json.dumps(trial.user_attrs["values"]["rl.kl_coef"])
        assert run.data.metrics["final/dev/accuracy"] == trial.value
        assert (run.info.status, run.data.tags["mathrl.outcome"]) == ("FINISHED", "complete")
        curve = client.get_metric_history(run.info.run_id, "dev/accuracy")
        assert {point.step: point.value for point in curve} == trial.intermediate_values
        (seed,) = [r for r in runs.values() if r.data.tags.get("mlflow.parentRunId") == run.info.run_id]
        assert seed.info.run_name == f"{run.info.run_name}-s0" and "reward/accuracy" in seed.data.metrics


def test_a_trial_behind_the_others_ends_early_and_the_winner_is_compared(place: Place) -> None:
    words = ["sweep.study=told", "sweep.trials=5", "sweep.workers=2", "sweep.startup_trials=1",
             "sweep.fresh_seeds=1", "sweep.seeds=2"]  # fmt: skip
    opened = open_study(sweep_section(words))
    params = {"rl.optimizer.muon_lr": 0.02, "rl.kl_coef": 0.05}
    for _ in range(3):  # as if others had done well: what is behind them ends early
        opened.study.add_trial(optuna.trial.create_trial(
            params=params, distributions={k: distribution(axis) for k, axis in opened.sweep.space.items()},
            value=0.9, intermediate_values=dict.fromkeys(range(1, 13), 0.9), user_attrs={"values": params},
        ))  # fmt: skip
    said = place.run("mathrl.sweeps.run", "run", *words)
    assert "trial 0: dev accuracy" in said, "the present parameters are never ended early"
    assert "trial 4: ended early" in said
    trials, curves = read_study("told").trials, []
    for seed in (0, 1):
        rows = (opened.folder / f"t0000-s{seed}" / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(row)["dev/accuracy"] for row in rows])
    # Reported: of the first seed its accuracy, of the second the mean with what the first came to.
    seen = [*curves[0], *((curves[0][-1] + now) / 2 for now in curves[1])]
    assert trials[0].intermediate_values == dict(enumerate(seen, start=1)) and len(seen) == 12
    assert trials[0].value == seen[-1] and trials[0].user_attrs["scores"] == [each[-1] for each in curves]
    assert trials[4].state == TrialState.PRUNED and not (opened.folder / "t0004-s1").exists()
    table = (opened.folder / "trials.md").read_text()
    assert "| 4 | ended early |" in table and "| 1 | complete | 0.9 | 0.02 | 0.05 |" in table

    said = place.run("mathrl.sweeps.run", "compare", *words)
    found = json.loads((opened.folder / "comparison.json").read_text())
    assert found["winner"] == 1 and found["seeds"] == [1000] and found["problems"] == 16
    assert found["verdict"] in said and list(found["models"]) == ["present parameters", "winner"]
    tests = {json.loads(line)["id"] for line in Path("data/splits/test.jsonl").read_text().splitlines()}
    for number in (0, 1):
        file = opened.folder / f"t{number:04d}-test-s1000" / "report" / "responses.jsonl"
        assert {json.loads(line)["problem_id"] for line in file.read_text().splitlines()} == tests
        assert not (opened.folder / f"t{number:04d}-fresh-s1000" / "model").exists()

    run = CliRunner().invoke
    shown = run(app, ["sweep", "show", "--study", "told"]).output
    assert "| 4 | ended early |" in shown and f"on test: {found['verdict']}" in shown
    promoted = run(app, ["sweep", "promote", "--study", "told"]).output
    assert "+  muon_lr: 0.02" in promoted and "+kl_coef: 0.05" in promoted and "git commit" in promoted
    rl = load_params().rl
    assert (rl.optimizer.muon_lr, rl.kl_coef) == (0.02, 0.05)
    assert "# GRPO" in Path("params/rl.yaml").read_text()
    # A promoted winner does not change what trial 0 was: the study goes on.
    assert open_study(sweep_section(words)).present == opened.present


def test_values_that_do_not_go_together_fail_their_trial_alone(place: Place) -> None:
    # Six prompts go with two updates, and four updates with four prompts, but not six with four.
    values = {"rl.prompts_per_step": [4, 6], "rl.minibatches": [2, 4]}
    space = {key: {"kind": "choice", "values": each} for key, each in values.items()}
    opened = open_study(sweep_section(["sweep.study=odd", f"sweep.space={json.dumps(space)}"]))
    opened.study.tell(claim(opened), 0.5)  # trial 0 is not what is looked at
    opened.study.enqueue_trial({"rl.prompts_per_step": 6, "rl.minibatches": 4})
    trial = claim(opened)
    assert trial is not None
    said = run_trial(opened, trial, lambda: False)
    assert "trial 1: failed: these values do not go together" in said and "multiple of minibatches" in said
    assert read_study("odd").trials[1].state == TrialState.FAIL
    write_report(opened)
    assert "Trial 1 failed: these values" in (opened.folder / "trials.md").read_text()


def test_the_dashboard_is_served_on_loopback(place: Place) -> None:
    open_study(sweep_section(["sweep.study=seen"]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = place.start("mathrl", "sweep", "dashboard", "--study", "seen", "--port", str(port))
    try:

        def studies() -> Any:
            try:
                url = f"http://127.0.0.1:{port}/api/studies"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return json.load(answer)
            except urllib.error.URLError:
                return None

        assert "seen" in json.dumps(wait(studies))
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        bound = {c.laddr.ip for p in family for c in p.net_connections() if c.status == "LISTEN"}
        assert bound == {"127.0.0.1"}
        busy = place.run("mathrl", "sweep", "dashboard", "--study", "seen", "--port", str(port), ok=False)
        assert busy.count("error:") == 1 and "in use" in busy
    finally:
        server.terminate()
        server.communicate(timeout=20)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["show", "--study", "none"], "no study 'none'"),
        (["promote", "--study", "empty"], "no complete trial yet"),
        (["run", "--set", "sweep.space={rl.lrr: {kind: log, low: 1e-4, high: 1e-2}}"], "did you mean lr"),
        (["run", "--set", "sweep.start=models/none"], "models/none: not there yet"),
    ],
)
def test_mistakes_end_in_a_sentence_before_any_server_starts(
    place: Place, words: list[str], part: str
) -> None:
    open_study(sweep_section(["sweep.study=empty"]))
    with pytest.raises(ValueError, match=part):
        CliRunner().invoke(app, ["sweep", *words], catch_exceptions=False)
