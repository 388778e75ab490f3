"""A stage's lock: one per recipe's step whatever its name, held by one process at a time, gone afterwards."""

import os
import subprocess
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.guard import process_start
from mathrl.core.records import RunRecord, read_record
from mathrl.stages.stage_run import StageRun, _hold_lock, resume_key, run_stage

ROOT = Path(__file__).parents[2]
CONTENDER = """
import os, sys, time
from pathlib import Path
from mathrl.core.errors import UserError
from mathrl.stages.stage_run import _hold_lock

state, held = Path(sys.argv[1]), 0
deadline = time.monotonic() + 600
while held < 40 and time.monotonic() < deadline:
    try:
        with _hold_lock(state, "rl"):
            os.close(os.open(state.with_name("inside"), os.O_CREAT | os.O_EXCL))  # fails if another is inside
            held += 1
            os.unlink(state.with_name("inside"))
    except UserError:
        pass
sys.exit(held != 40)
"""


def test_steps_of_recipes_whose_names_have_dots_run_beside_one_another(tmp_path: Path) -> None:
    with _hold_lock(tmp_path / "qwen2.5-r1-rl-77aa", "rl"), _hold_lock(tmp_path / "qwen2.7-x-rl-40d2", "rl"):
        locks = {"qwen2.5-r1-rl-77aa.lock", "qwen2.7-x-rl-40d2.lock"}
        assert {file.name for file in tmp_path.iterdir()} == locks
        with pytest.raises(UserError, match="already running"), _hold_lock(tmp_path / "qwen2.5-r1-rl-77aa", "rl"):
            pass
        assert {file.name for file in tmp_path.iterdir()} == locks, "whoever was refused leaves it to the holder"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_released_and_gone_after_an_error_and_a_stale_one_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "rl-77aa.lock").touch()  # of a process that was killed
    for _ in range(2):
        with pytest.raises(RuntimeError), _hold_lock(tmp_path / "rl-77aa", "rl"):
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []


def test_a_flow_that_waited_for_another_ends_with_75_and_leaves_no_lock(tmp_path: Path, warm_python: Path) -> None:
    code = "import sys; from pathlib import Path; from mathrl.stages.stage_run import _hold_lock\n"
    code += "with _hold_lock(Path(sys.argv[1]), 'rl'): sys.exit(9)"
    with _hold_lock(tmp_path / "rl-77aa", "rl"):
        flow = subprocess.Popen(
            [warm_python / "python", "-c", code, str(tmp_path / "rl-77aa")],
            env=os.environ | {"MATHRL_FLOW_RUN": "a flow"},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert flow.stderr is not None and "waiting for it to end" in flow.stderr.readline()
        assert flow.poll() is None
    assert flow.wait(timeout=60) == 75
    assert list(tmp_path.iterdir()) == []


def test_the_removal_of_the_lock_lets_no_two_in(tmp_path: Path, warm_python: Path) -> None:
    command = [warm_python / "python", "-c", CONTENDER, str(tmp_path / "rl-77aa")]
    environment = {name: text for name, text in os.environ.items() if name != "MATHRL_FLOW_RUN"}
    contenders = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    errors = [contender.communicate(timeout=800)[1] for contender in contenders]
    assert [contender.returncode for contender in contenders] == [0] * 3, "\n".join(errors)
    assert list(tmp_path.iterdir()) == []


def test_a_running_stage_holds_its_lock_and_its_record_tells_its_process_from_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("HOME", "STATE", "RECORD"):
        monkeypatch.setenv(f"MATHRL_{name}", str(tmp_path / name.lower()))
    monkeypatch.setenv("MATHRL_MIRROR", "none")
    records: list[RunRecord | None] = []

    def work(run: StageRun) -> None:
        records.append(read_record(run.record.folder))
        with pytest.raises(UserError, match="curate is already running with these"), _hold_lock(run.state, "curate"):
            pass

    run_stage("curate", work, inputs=[], outputs=[], overrides=[])
    (record,) = records
    assert record is not None and (record.status, record.pid) == ("running", os.getpid())
    assert record.pid_start == process_start(os.getpid()) is not None


def test_only_the_number_of_ranks_may_differ_in_a_run_that_resumes() -> None:
    def key(**run: int) -> str:
        return resume_key("rl", {"run": {"seed": 0, "processes": 2} | run, "rl": {"lr": 1.0}}, {"file": "digest"})

    assert key() == key(processes=64) != key(seed=1)


def test_every_file_of_the_data_is_recorded(tmp_path: Path) -> None:
    """Of two mixtures the record had the last alone."""
    files = [tmp_path / place / "train.jsonl" for place in ("easy", "hard")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"{file}\n")
    run = StageRun("rl", load_params(ROOT / "params"), tmp_path / "state", RunRecord(tmp_path / "record"))
    run.datasets("dev", files[:1])
    run.datasets("mixture", files)
    assert {name: each["path"] for name, each in run.record.datasets.items()} == {
        "dev": str(files[0]),
        "mixture/easy/train": str(files[0]),
        "mixture/hard/train": str(files[1]),
    }
