"""Who gets which trial: budgets, workers that die, a journal file and a real PostgreSQL server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from mathrl.core.errors import UserError
from mathrl.params.sweep import Sweep
from mathrl.sweeps.study import TrialLost, best, claim, locked_file, open_study, read_study, study_folder, while_holding
from mathrl.sweeps.trial import Interrupted, TrialRun, execute
from tests.postgres import postgres_server

ROOT = Path(__file__).parents[2]
SPACE = {
    "rl.optimizer.lr": {"kind": "log", "low": 1e-4, "high": 1e-2},
    "rl.kl.coef": {"kind": "zero_or_log", "low": 1e-3, "high": 0.3},
}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the parameters and some bytes in place of model and problems, which nobody reads."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    for name in ("models/sft/model.safetensors", "data/rl.jsonl", "data/dev.jsonl", "data/sft.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    return tmp_path


def section(study: str = "s", **more: Any) -> Sweep:
    files = {"data": ["data/rl.jsonl"], "dev": "data/dev.jsonl", "examples": "data/sft.jsonl"}
    return Sweep.model_validate({"study": study, "space": SPACE, "trials": 12, **files, **more})


def works(sweep: Sweep, out: Path) -> None:
    """A worker without a trainer: claims, scores at once, notes which trials it had."""
    with out.open("a") as log:
        while (claimed := claim(opened := open_study(sweep))) is not None:
            time.sleep(0.01)
            opened.study.tell(claimed.trial, claimed.trial.params["rl.optimizer.lr"])
            log.write(f"{claimed.trial.number}\n")


def claims_and_dies(sweep: Sweep, out: Path) -> None:
    claimed = claim(open_study(sweep))
    assert claimed is not None
    out.write_text(json.dumps([claimed.trial.number, claimed.trial.params]))
    os.kill(os.getpid(), signal.SIGKILL)


def several(count: int, target: Callable[..., None], *given: Any) -> None:
    """Processes of their own; forked, since each would import for seconds otherwise."""
    fork = get_context("fork")
    children = [fork.Process(target=target, args=given) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(600)
        assert child.exitcode in (0, -signal.SIGKILL)


def check_workers_share_and_survive(sweep: Sweep, folder: Path) -> None:
    """Two die with a trial each; four others, at once, take over those two and run each trial once."""
    several(1, claims_and_dies, sweep, folder / "first")
    first = json.loads((folder / "first").read_text())
    assert first[0] == 0
    several(4, works, sweep, folder / "log")
    numbers = [int(line) for line in (folder / "log").read_text().split()]
    assert sorted(numbers) == list(range(12))
    trials = open_study(sweep).study.get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 12
    assert trials[0].params == first[1], "the trial that is taken over has the parameters that it had"
    assert len({trial.params["rl.optimizer.lr"] for trial in trials}) == 12, "workers must not draw alike"


def test_workers_share_a_journal_and_survive_one_anothers_death(inputs: Path) -> None:
    sweep = section()
    check_workers_share_and_survive(sweep, inputs)
    assert claim(open_study(sweep)) is None
    more = claim(open_study(section(trials=13)))
    assert more is not None and more.trial.number == 12


def check_the_fence(sweep: Sweep, lose_lock: Callable[[Any], None]) -> None:
    """Of two workers that both believe they have the trial only the one that claimed it last can write."""
    opened = open_study(sweep)
    slept = claim(opened)
    assert slept is not None and claim(opened) is None, "its worker is alive"
    lose_lock(slept.lock)
    claimed = claim(opened)
    assert claimed is not None and claimed.trial.number == slept.trial.number == 0
    with pytest.raises(TrialLost, match=f"a worker on {socket.gethostname()} has taken it over"), while_holding(slept):
        opened.study.tell(slept.trial, 0.1)
    with while_holding(claimed):
        opened.study.tell(claimed.trial, 0.7)
    for each in (slept, claimed):
        with pytest.raises(TrialLost, match="it is complete already"), while_holding(each):
            pass
    assert open_study(sweep).study.trials[0].value == 0.7


def test_a_worker_that_lost_its_trial_writes_nothing_more(inputs: Path) -> None:
    check_the_fence(section(trials=1), lambda lock: Path(lock.name).unlink())


@pytest.fixture
def server() -> Iterator[str]:
    with postgres_server("mathrl") as uri:
        yield uri


def test_workers_share_a_postgresql_server(inputs: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHRL_SWEEP_STORAGE", server)
    check_workers_share_and_survive(section(storage="environment"), inputs)
    check_the_fence(section("fence", storage="environment", trials=1), lambda lock: lock.close())
    assert not list(study_folder("s").glob("journal*")), "nothing on a disk that machines would have to share"
    assert len(read_study("s", "environment").trials) == 12
    port = int(server.rsplit(":", 1)[1].split("/")[0])
    monkeypatch.setenv("MATHRL_SWEEP_STORAGE", server.replace(str(port), "1"))
    with pytest.raises(UserError) as caught:
        open_study(section(storage="environment"))
    assert "MATHRL_SWEEP_STORAGE" in str(caught.value) and "pa55" not in str(caught.value)


def test_a_storage_url_is_asked_for(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATHRL_SWEEP_STORAGE", raising=False)
    with pytest.raises(UserError, match="put postgresql://USER:PASSWORD@HOST:PORT/DATABASE into"):
        open_study(section(storage="environment"))


def test_trial_0_is_what_is_present_and_late_is_late(inputs: Path) -> None:
    opened = open_study(section())
    claimed = claim(opened)
    assert claimed is not None and claimed.trial.number == 0
    assert (
        opened.present == {"rl.optimizer.lr": 0.01, "rl.kl.coef": 0.0}
        and claimed.trial.params["rl.optimizer.lr"] == 0.01
    )
    assert claim(opened, until=time.time() - 1) is None
    claimed.lock.close()
    again = claim(opened, until=time.time() - 1)
    assert again is not None and again.trial.number == 0, "what is begun is finished, however late"


def test_a_trainer_that_outlives_its_worker_is_waited_for(inputs: Path) -> None:
    opened = open_study(section(trials=1))
    lock = locked_file(opened.folder / "locks" / "t0000-s0")
    assert lock is not None
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[lock.fileno()])
    lock.close()
    asked: list[float] = []

    def stop_requested() -> bool:
        asked.append(time.time())
        return len(asked) == 3

    with pytest.raises(Interrupted):
        run = TrialRun(opened.folder, "t0000-s0", (), "")
        execute(run, opened, stop_requested, lambda curve: False, lambda: None)
    trainer.kill()
    trainer.wait()
    while (free := locked_file(opened.folder / "locks" / "t0000-s0")) is None:
        time.sleep(0.01)
    free.close()


def test_a_study_is_not_mixed_with_another(inputs: Path) -> None:
    open_study(section())
    with pytest.raises(UserError, match=r"created with another sweep\.seeds"):
        open_study(section(seeds=2))
    with pytest.raises(UserError, match=r"created with another rl\.group_size, sweep\.set"):
        open_study(section(set=["rl.group_size=8"]))
    Path("data/dev.jsonl").write_text("others")
    with pytest.raises(UserError, match=r"created with another data/dev\.jsonl"):
        open_study(section())
    assert open_study(section("t")).study.trials[0].state == TrialState.WAITING
    with pytest.raises(UserError, match="no study 'x'; existing studies: s, t"):
        read_study("x")


def test_inputs_that_are_not_there_and_dev_that_is_test(inputs: Path) -> None:
    with pytest.raises(UserError, match="models/none: missing"):
        open_study(section(start="models/none"))
    shutil.copy("data/dev.jsonl", "data/test.jsonl")
    with pytest.raises(UserError, match="holds the test problems"):
        open_study(section(test="data/test.jsonl"))


def reports(trial: optuna.trial.Trial, height: float) -> Iterator[bool]:
    """Whether the trial is to end, at each evaluation of a curve that rises a little from `height`."""
    for step in range(10, 60, 10):
        trial.report(height + step / 1000, step)
        yield trial.should_prune()


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruners_end_a_curve_below_the_others(inputs: Path, pruner: str) -> None:
    opened = open_study(section(pruner=pruner, startup_trials=2, trials=None, hours=1))
    for _ in range(6):
        claimed = claim(opened)
        assert claimed is not None and not any(reports(claimed.trial, 0.5))
        opened.study.tell(claimed.trial, 0.55)
    ended = []
    for _ in range(6):  # Hyperband spares some, those of its bracket without a rung
        claimed = claim(opened)
        assert claimed is not None
        ended.append(any(reports(claimed.trial, 0.1)))
        opened.study.tell(claimed.trial, state=TrialState.PRUNED)
    assert all(ended) if pruner == "median" else any(ended)
    kind = {"median": optuna.pruners.MedianPruner, "hyperband": optuna.pruners.HyperbandPruner}[pruner]
    assert isinstance(opened.study.pruner, kind)


def test_the_best_is_the_earliest_of_the_highest_that_are_complete(inputs: Path) -> None:
    study = optuna.create_study(direction="maximize")
    states = {0: (TrialState.COMPLETE, 0.4), 1: (TrialState.PRUNED, 0.9), 2: (TrialState.COMPLETE, 0.6)}
    assert best(study.trials) is None
    for state, value in [*states.values(), (TrialState.COMPLETE, 0.6)]:
        study.add_trial(optuna.trial.create_trial(state=state, value=value))
    found = best(study.trials)
    assert found is not None and found.number == 2
