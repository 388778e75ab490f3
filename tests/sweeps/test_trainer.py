"""A trial's trainer when the code has changed: a new process. Else it is a fork: test_run.py."""

import importlib
import os
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from mathrl.sweeps import trainer
from mathrl.sweeps.study import locked_file


def _run_what_is_imported(*given: Any) -> None:
    """As in a fork of a process that curation started: it imports all that the program had imported."""
    importlib.import_module("mathrl.stages.rl")
    trainer._run(*given)


def test_beside_a_gpu_a_trainer_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainer._may_fork()
    monkeypatch.setattr(trainer, "gpu_count", lambda: 1)
    assert not trainer._may_fork()


def test_a_trainer_after_a_change_of_the_code_is_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_code_at_start", lambda: ("0.0.1", "another"))
    monkeypatch.setattr(trainer, "_run", _run_what_is_imported)
    check_a_trainer(SpawnProcess, tmp_path, monkeypatch)


def check_a_trainer(method: type, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its words, its log, its worker's environment and its lock."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    lock = locked_file(Path("lock"))
    assert lock is not None
    monkeypatch.setenv("COLUMNS", "300")  # the width of argparse's lines
    with lock, Path("log.txt").open("ab") as log:
        run = trainer.start_run(["out", "--unknown"], os.environ | {"COLUMNS": "80"}, log, lock)
    assert isinstance(run, method)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE", "torch reads it where it is imported"
    assert locked_file(Path("lock")) is None, "the trainer holds it, though it is closed here"
    run.join()
    said = Path("log.txt").read_text()
    assert run.exitcode == 2 and "unrecognized arguments: --unknown" in said
    assert "Warning" not in said and max(map(len, said.splitlines())) <= 80, "it has the environment of its worker"
    free = locked_file(Path("lock"))
    assert free is not None
    free.close()
