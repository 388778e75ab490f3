"""Studies of the real trainer on a tiny model: stopped, killed, ended early, compared, promoted."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
import urllib.request
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.cli.sweep import _print_study
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.guard import is_alive, process_start
from mathrl.core.records import all_records
from mathrl.params.load import parse_yaml
from mathrl.recipes.graph import graph_file, write_recipe_graph
from mathrl.sweeps.report import write_report
from mathrl.sweeps.run import _steps_done, sweep_section
from mathrl.sweeps.space import distribution
from mathrl.sweeps.study import HOLDER, OpenStudy, claim, locked_file, open_study, read_study, study_lock, while_holding
from mathrl.sweeps.trial import run_trial
from mathrl.sweeps.winner import comparison_recipe, write_comparison_recipe, write_verdict
from tests.conftest import wait_for
from tests.foreign_requests import check_refused
from tests.sweeps.test_trainer import check_a_trainer

Place = Any
# The studies of one test are looked at by the next. Trainers start some ten times: slow on a busy machine.
pytestmark = pytest.mark.timeout(1200)
STUDY, STEPS = "killed", 30
TOLD = {"rl.optimizer.lr": 0.02, "rl.kl.coef": 0.05}
COMPARED = [
    f"sweep.study={STUDY}",
    "sweep.seeds=2",
    "sweep.fresh_seeds=1",
    "sweep.workers=2",
    f"rl.steps={STEPS}",
    "rl.dev.samples=1",
    "rl.checkpoint_every=3",
    "rl.dev.every=2",
]
SWEEP = (sys.executable, "-m", "mathrl.sweeps.run")


def steps_of(run: Path) -> list[int]:
    """The steps in a run's live metrics; [] before there is one."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines]


def hold_run(opened: OpenStudy, label: str) -> IO[bytes]:
    """The lock of a run, which no worker begins until this is closed."""
    lock = locked_file(opened.folder / "locks" / label)
    assert lock is not None
    return lock


def processes(study: str) -> list[int]:
    """The worker of trial 0, its trainer, and the process that forked it."""
    worker = read_study(study).trials[0].user_attrs[HOLDER]["pid"]
    return [worker, *(child.pid for child in psutil.Process(worker).children(recursive=True))]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_stopped_and_then_killed_a_study_goes_on_where_it_was(place: Place) -> None:
    """Two seeds a trial. Trials 1 and 2 are told as if they had done well: what is behind them ends early."""
    words = [*COMPARED, "sweep.trials=4", "sweep.startup_trials=1", "sweep.workers=1"]
    opened = open_study(sweep_section(words))
    for _ in range(2):
        opened.study.add_trial(
            optuna.trial.create_trial(
                params=TOLD,
                distributions={k: distribution(axis) for k, axis in opened.sweep.space.items()},
                value=0.9,
                intermediate_values=dict.fromkeys(range(2, 2 * STEPS + 1, 2), 0.9),
                user_attrs={"values": TOLD},
            )
        )
    runs = [opened.folder / f"t0000-s{seed}" for seed in range(2)]

    second_seed, other = (hold_run(opened, label) for label in ("t0000-s1", "t0003-s0"))
    # Stopped as a cancelled flow does it: the guard's standard input is closed.
    first = place.start("mathrl.core.guard", *SWEEP, *words)
    wait_for(lambda: len(steps_of(runs[0])) > 3)  # of three there is a checkpoint
    pids = processes(STUDY)
    assert len(pids) >= 2, "the trainer, on a fast machine, has ended"
    said = first.communicate(timeout=300)[0]
    assert first.returncode == 130, said
    wait_for(lambda: not any(map(is_alive, pids)))
    stopped, before = time.time(), sum(len(steps_of(run)) for run in runs)
    assert read_study(STUDY).trials[0].state == TrialState.RUNNING

    # Started again, with two workers; one is killed while the other still works, which takes over its trial.
    again = place.begin([place.python, "-m", "mathrl.sweeps.run", *words, "sweep.workers=2"])
    wait_for(lambda: sum(len(steps_of(run)) for run in runs) > before or before == STEPS)
    wait_for(lambda: is_alive(read_study(STUDY).trials[0].user_attrs[HOLDER]["pid"]))  # the trial has a worker again
    worker, *below = processes(STUDY)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, below)))  # its trainer ends with it
    second_seed.close()
    other.close()
    said = again.communicate(timeout=900)[0]
    assert again.returncode == 0, said
    assert said.count("\ntrial ") == 2 and "trial 3: ended early" in said, said
    assert "Warning" not in said
    trials = read_study(STUDY).trials
    done = TrialState.COMPLETE
    assert [trial.state for trial in trials] == [done, done, done, TrialState.PRUNED]
    assert max(trials[3].intermediate_values) == 2 and not (opened.folder / "t0003-s1").exists()

    # Trial 0 is never ended early, has every step once, and was resumed, not started again.
    curves = []
    for run in runs:
        assert steps_of(run) == list(range(1, STEPS + 1)), "a step that is lost, or done twice"
        curves.append([row["dev/accuracy"] for row in rows_of(run) if "dev/accuracy" in row])
        assert len(list((place.home / "records").glob(f"{STUDY}-{run.name}-*"))) == 1
        assert not (run / "model").exists() and (run / "report" / "curve.png").exists()
    assert rows_of(runs[0])[0]["at"] < stopped
    # Reported: of the first seed its accuracy, of the second the mean with what the first came to.
    seen = [*curves[0], *((curves[0][-1] + now) / 2 for now in curves[1])]
    assert trials[0].intermediate_values == dict(zip(range(2, 2 * STEPS + 1, 2), seen, strict=True))
    assert trials[0].value == seen[-1] and trials[0].user_attrs["scores"] == [each[-1] for each in curves]
    assert not list((place.home / "state").glob(f"{STUDY}-*"))
    table = (opened.folder / "trials.md").read_text()
    assert "| 3 | ended early |" in table and "| 1 | complete | 0.9 | 0.02 | 0.05 |" in table
    assert {file.name for file in opened.folder.glob("*.png")} >= {"best.png", "slices.png"}


def test_mlflow_has_one_run_a_trial_under_the_studys(
    place: Place, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the study above, uploaded late: the seeds' runs find their trials all the same."""
    from mathrl.tracking.client import connect, experiments
    from mathrl.tracking.mirror import sync

    if not (place.home / "sweeps" / STUDY).exists():
        pytest.skip("the study of the test above")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    sync()
    client = connect()
    runs = client.search_runs(experiments(client))

    def below(run: Any) -> dict[str, Any]:
        parent = run.info.run_id
        return {r.info.run_name.split()[0]: r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent}

    (study,) = [run for run in runs if run.data.tags.get("mathrl.role") == "study"]
    assert study.info.run_name.startswith(f"sweep {STUDY}-") and "sweep.trials" in study.data.params
    found = below(study)
    assert set(found) == {f"{STUDY}/t0000", f"{STUDY}/t0003"}
    for name, outcome, seeds in (("t0000", "complete", 2), ("t0003", "ended early", 1)):
        run, trial = found[f"{STUDY}/{name}"], read_study(STUDY).trials[int(name[1:])]
        assert run.data.params["rl.kl.coef"] == json.dumps(trial.user_attrs["values"]["rl.kl.coef"])
        assert (run.info.status, run.data.tags["mathrl.outcome"]) == ("FINISHED", outcome)
        curve = client.get_metric_history(run.info.run_id, "dev/accuracy")
        assert {point.step: point.value for point in curve} == trial.intermediate_values
        assert set(below(run)) == {f"{STUDY}/{name}-s{seed}" for seed in range(seeds)}
        assert all("reward/accuracy" in each.data.metrics for each in below(run).values())
    assert found[f"{STUDY}/t0000"].data.metrics["final/dev/accuracy"] == read_study(STUDY).trials[0].value


def test_the_winner_is_compared_on_test_by_a_recipe_and_promoted(place: Place) -> None:
    if not (place.home / "sweeps" / STUDY).exists():
        pytest.skip("the study of the test above")
    opened = open_study(sweep_section(COMPARED))
    folder = place.home / "sweeps" / STUDY
    name, winner = write_comparison_recipe(opened)
    assert (name, winner) == (f"sweep-{STUDY}", 1)
    recipe = write_recipe_graph(name, Path())
    assert list(recipe.steps) == ["present", "test_present", "winner", "test_winner"] and recipe.seeds == (1000,)
    for stage in parse_yaml(Path(graph_file(name)).read_text(), name)["stages"].values():  # as `dvc repro` runs them
        place.run(*shlex.split(stage["cmd"])[2:])
    found = write_verdict(opened, name, winner)
    assert found == json.loads((folder / "comparison.json").read_text())
    assert found["winner"] == 1 and found["recipe"] == name and found["problems"] == 16
    assert list(found["models"]) == ["present parameters", "winner"]
    tests = {json.loads(line)["id"] for line in Path("data/splits/test.jsonl").read_text().splitlines()}
    for side, values in (("present", opened.present), ("winner", TOLD)):
        file = Path("pipelines/recipes", name, f"test_{side}", "report", "responses.jsonl")
        assert {json.loads(line)["problem_id"] for line in file.read_text().splitlines()} == tests
        record = place.record(f"{name}-{side}")
        assert record["params"]["rl"]["optimizer"]["lr"] == values["rl.optimizer.lr"]

    run = CliRunner().invoke
    shown = run(app, ["sweep", "show", "--study", STUDY]).output
    assert re.search(r"\b3 +│ +ended early", shown) and f"on test: {found['verdict']}" in shown
    of_another = json.dumps(found | {"winner": 2})
    (folder / "comparison.json").write_text(of_another)
    shown = run(app, ["sweep", "show", "--study", STUDY]).output
    assert f"trial 2, which is no longer the best: {found['verdict']}" in shown and "sweep compare" in shown
    (folder / "comparison.json").write_text(json.dumps(found))
    promoted = run(app, ["sweep", "promote", "--study", STUDY]).output
    assert "+  lr: 0.02" in promoted and "+  coef: 0.05" in promoted and "git commit" in promoted
    rl = load_params().rl
    assert (rl.optimizer.lr, rl.kl.coef) == (0.02, 0.05)
    # A promoted winner does not change what trial 0 was: the study goes on.
    assert open_study(sweep_section(COMPARED)).present == opened.present


def test_a_comparison_takes_the_splits_of_one_folder_and_evaluates_each_side_with_its_values(place: Place) -> None:
    space = "{rl.optimizer.lr: null, rl.kl.coef: null, prompt.instruction: {kind: choice, values: [a, b]}}"
    opened = open_study(sweep_section(["sweep.study=asked", f"sweep.space={space}", "prompt.instruction=a"]))
    steps = comparison_recipe(opened, 1, {"prompt.instruction": "b"}).steps
    assert "prompt.instruction=a" in steps["test_present"].set and "prompt.instruction=b" in steps["test_winner"].set
    Path("fewer.jsonl").write_text("".join(Path("data/splits/test.jsonl").read_text().splitlines(True)[:9]))
    opened = open_study(sweep_section(["sweep.study=asked2", "sweep.test=fewer.jsonl"]))
    with pytest.raises(UserError, match=r"splits of one folder to compare on: dev\.jsonl"):
        comparison_recipe(opened, 1, {})


def test_values_that_do_not_go_together_fail_their_trial_alone(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    # Six prompts go with two updates, and four updates with four prompts, but not six with four.
    values = {"rl.prompts_per_step": [4, 6], "rl.minibatches": [2, 4]}
    space = {key: {"kind": "choice", "values": each} for key, each in values.items()}
    opened = open_study(sweep_section(["sweep.study=odd", f"sweep.space={json.dumps(space)}"]))
    first = claim(opened)
    assert first is not None
    opened.study.tell(first.trial, 0.5)  # trial 0 is not what is looked at
    opened.study.enqueue_trial({"rl.prompts_per_step": 6, "rl.minibatches": 4})
    claimed = claim(opened)
    assert claimed is not None
    said = run_trial(opened, claimed, lambda: False)
    assert "trial 1: failed: these values are not valid together" in said and "multiple of minibatches" in said
    assert read_study("odd").trials[1].state == TrialState.FAIL
    write_report(opened)
    assert "Trial 1 failed: `these values" in (opened.folder / "trials.md").read_text()
    _print_study(read_study("odd"), opened.folder)
    printed = capsys.readouterr().out
    assert "│ complete" in printed and "trial 1 failed: these values" in printed  # a table, not its Markdown
    assert "winner: trial 0, dev accuracy 0.5000" in printed and "next: mathrl sweep compare" in printed


def test_a_failed_trial_leaves_its_log_and_no_checkpoint_and_its_trainer_is_a_fork(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = ["health.action=stop", "health.loss=0.000001"]  # from step 5 on
    opened = open_study(sweep_section(["sweep.study=red", "rl.dev.samples=1", *red]))
    claimed = claim(opened)
    assert claimed is not None
    assert "failed: stopped at step 5 since health.action is stop" in run_trial(opened, claimed, lambda: False)
    assert len(steps_of(opened.folder / "t0000-s0")) == 5 and (opened.folder / "t0000-s0" / "log.txt").exists()
    assert not list((place.home / "state").glob("red-*"))
    check_a_trainer(ForkServerProcess, tmp_path, monkeypatch)


def test_progress_counts_the_steps_within_a_trial(place: Place) -> None:
    opened = open_study(sweep_section(["sweep.study=counted", "sweep.trials=3", "rl.steps=20"]))
    first, second = claim(opened), claim(opened)
    assert first is not None and second is not None
    opened.study.tell(first.trial, 0.5)
    folder = opened.folder / "t0001-s0"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n' * 7)
    assert _steps_done(opened, per_trial=20) == 20 + 7


def test_a_machine_that_slept_while_another_took_its_trial_leaves_it_alone(place: Place) -> None:
    words = ["sweep.study=slept", "sweep.trials=1", "rl.steps=2000", "rl.dev.samples=1"]
    far = place.begin([place.python, "-m", "mathrl.sweeps.run", "--worker", "-", *words])
    opened = open_study(sweep_section(words))
    wait_for(lambda: len(steps_of(opened.folder / "t0000-s0")) > 1)

    worker, *below = processes("slept")
    assert len(below) >= 2, "the trainer, and the process that forked it"
    begun = [(record.pid, record.pid_start) for record in all_records("slept-") if record.stage == "trial"]
    assert begun == [(worker, process_start(worker))]
    with study_lock(opened.sweep):  # it does not fall asleep while it holds the study
        for pid in (worker, *below):
            os.kill(pid, signal.SIGSTOP)
    (opened.folder / "locks" / "0000").unlink()  # as a file server frees the locks of a machine that is silent
    claimed = claim(opened)
    assert claimed is not None
    for pid in (worker, *below):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not any(map(is_alive, below)))
    with while_holding(claimed):
        opened.study.tell(claimed.trial, 0.5)
    said = far.communicate(timeout=300)[0]
    taken = f"trial 0 no longer belongs to this worker: a worker on {socket.gethostname()} has taken it over"
    assert far.returncode == 0 and taken in said, said
    assert read_study("slept").trials[0].value == 0.5


def test_the_dashboard_is_served_on_loopback(place: Place, held_port: socket.socket) -> None:
    open_study(sweep_section(["sweep.study=seen"]))
    port = held_port.getsockname()[1]
    server = place.start("mathrl", "sweep", "dashboard", "--study", "seen", "--port", str(port))
    try:

        def studies() -> Any:
            try:
                url = f"http://127.0.0.1:{port}/api/studies"
                with urllib.request.urlopen(url, timeout=60) as answer:
                    return json.load(answer)
            except OSError:
                return None

        assert "seen" in json.dumps(wait_for(studies))
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        bound = {c.laddr.ip for p in family for c in p.net_connections() if c.status == "LISTEN"}
        assert bound == {"127.0.0.1"}
        check_refused(f"http://127.0.0.1:{port}/api/studies")
        check_refused(f"http://127.0.0.1:{port}/dashboard")
        busy = place.run("mathrl", "sweep", "dashboard", "--study", "seen", "--port", str(port), ok=False)
        assert busy.count("error:") == 1 and "in use" in busy
    finally:
        server.terminate()
        server.communicate(timeout=300)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["show", "--study", "none"], "no study 'none'"),
        (["promote", "--study", "empty"], "no complete trial yet"),
        (["run", "--set", "sweep.space={rl.lrr: {kind: log, low: 1e-4, high: 1e-2}}"], "rl.lrr"),
        (["run", "--set", "sweep.start=models/none"], "models/none: missing"),
    ],
)
def test_mistakes_end_in_a_sentence_before_any_server_starts(place: Place, words: list[str], part: str) -> None:
    open_study(sweep_section(["sweep.study=empty"]))
    with pytest.raises(ValueError, match=part):
        CliRunner().invoke(app, ["sweep", *words], catch_exceptions=False)
