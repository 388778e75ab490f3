"""W&B, offline for real, and TensorBoard's event files, fed by the mirror: read back by their own readers and ours."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mathrl.core import mirroring
from mathrl.core.errors import UserError
from mathrl.core.mirroring import chosen_trackers, while_mirroring
from mathrl.core.records import MirrorState, TrackerState, read_record
from mathrl.imports.foreign_run import read_run
from mathrl.imports.write_record import gather
from mathrl.tracking import mirror as module
from mathrl.tracking import wandb_tensorboard
from mathrl.tracking.client import connect
from mathrl.tracking.mirror import Mirror
from mathrl.tracking.upload import run_note
from mathrl.tracking.wandb_tensorboard import wandb_records
from tests.marks import needs_trackers
from tests.tracking.test_mirror import HEALTH, NAME, record, say

pytestmark = needs_trackers
__all__ = ["record"]  # a fixture


@pytest.fixture(autouse=True)
def trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, W&B offline; nobody is logged in."""
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MATHRL_TRACKING", "mlflow, wandb, tensorboard")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setattr(wandb_tensorboard, "ANSWER_SECONDS", 300.0)
    monkeypatch.setattr(wandb_tensorboard, "UPLOAD_SECONDS", 300.0)


def log(record: Path, rows: Mapping[int, Mapping[str, Any]], at: float = 0.0) -> None:
    with (record / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"step": step, "at": at + step, **row}) + "\n" for step, row in rows.items())


def curve(steps: range) -> dict[int, dict[str, float]]:
    return {step: {"reward/accuracy": step / 16, "kl": 0.5**step} for step in steps}


def wandb_steps(home: Path) -> list[int]:
    """The steps of every row of metrics in W&B's files, in all folders."""
    files = sorted(home.glob("wandb/offline-run-*/run-*.wandb"))
    return [item.history.step.num for file in files for item in wandb_records(file) if item.HasField("history")]


def wandb_summary(home: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for file in sorted(home.glob("wandb/offline-run-*/run-*.wandb")):
        for item in wandb_records(file):
            for update in item.summary.update:
                values["/".join(update.nested_key) or update.key] = json.loads(update.value_json)
    return values


def accumulated(home: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (home / "tensorboard").iterdir()
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
    return read.Reload()


def board_curve(home: Path, name: str = "reward/accuracy") -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulated(home).Scalars(name)]


def board_text(home: Path, tag: str) -> str:
    return str(accumulated(home).Tensors(tag)[-1].tensor_proto.string_val[0].decode())


def mlflow_run() -> Any:
    (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    return run


def without_clock(steps: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    return {step: {k: v for k, v in row.items() if not k.startswith("_")} for step, row in steps.items()}


def test_a_run_in_both_trackers_has_curves_parameters_examples_report_and_links(
    record: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import matplotlib.pyplot

    mirror, params = Mirror(), {"rl": {"optimizer": {"lr": 2e-6}, "keep_rollouts": {"which": "all"}}}
    log(record, curve(range(1, 4)))
    say(record, "running", 1.0, params=params)
    mirror.sweep()
    log(record, curve(range(4, 8)))
    (record / "artifacts" / "examples.json").write_text('[{"prompt": "1 + 1?", "response": "2 | two"}]')
    (record / "artifacts" / "report.md").write_text("# How it went\n\nWell.\n")
    (record / "artifacts" / "page.html").write_text("<h1>How it went</h1>")
    matplotlib.pyplot.figure(figsize=(1, 2), dpi=50).savefig(record / "artifacts" / "rl_curve.png")
    say(record, "finished", 1.0, params=params, summary={"dev/accuracy": 0.4375}, health=HEALTH)
    assert mirror.sweep() == 1

    run = mlflow_run()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert run.data.tags["mathrl.wandb"] == f"wandb/{folder.name}"
    assert (tmp_path / run.data.tags["mathrl.tensorboard"]).is_dir()
    in_wandb, in_board = read_run(tmp_path / "wandb"), read_run(tmp_path / "tensorboard")
    assert without_clock(in_wandb.steps) == without_clock(in_board.steps) == curve(range(1, 8))
    for read in (in_wandb, in_board):
        assert read.system == "mathrl" and without_clock({r["step"]: r for r in gather(read).rows}) == {
            step: {"step": step, **row} for step, row in curve(range(1, 8)).items()
        }, "mathrl import"
    assert in_wandb.config["rl.optimizer.lr"] == 2e-6 and in_wandb.config["links.MLflow run"] == run.info.run_id
    notes = [item.run.notes for file in folder.glob("*.wandb") for item in wandb_records(file)]
    assert not any(item.run.host for file in folder.glob("*.wandb") for item in wandb_records(file))
    assert f"[Rollouts](http://127.0.0.1:5001/{NAME}/)" in notes
    summary = wandb_summary(tmp_path)
    assert summary["final/dev/accuracy"] == 0.4375 and summary["health"] == "yellow"
    assert summary["examples"]["_type"] == "table-file" and summary["report/page"]["_type"] == "html-file"
    assert summary["report/rl_curve"]["_type"] == "image-file" and summary["report/report"]["_type"] == "table-file"
    assert "2 | two" in next(folder.rglob("examples*.table.json")).read_text()

    assert "| rl.optimizer.lr | 2e-06 |" in board_text(tmp_path, "parameters")
    assert run.info.run_id in board_text(tmp_path, "links") and "How it went" in board_text(tmp_path, "report/report")
    assert "| 1 + 1? | 2 \\| two |" in board_text(tmp_path, "examples")
    assert "| final/dev/accuracy | 0.4375 |" in board_text(tmp_path, "result")
    (picture,) = accumulated(tmp_path).Images("report/rl_curve")
    assert (picture.width, picture.height) == (50, 100)
    assert capfd.readouterr().err == ""
    assert Mirror().sweep() == 1 and len(wandb_steps(tmp_path)) == 7, "nothing is sent again"


MIRROR_THAT_IS_KILLED = """
import json, os, signal, sys, time
from pathlib import Path
from mathrl.tracking import mirror as module, wandb_tensorboard
from tests.marks import needs_trackers
from tests.tracking.test_mirror import Unwatched
wandb_tensorboard.ANSWER_SECONDS = 300.0
module._system_monitor = lambda run_id: Unwatched()
mirror = module.Mirror()
mirror.sweep()
with Path(sys.argv[1], "metrics.jsonl").open("a") as stream:
    for s in (4, 5):
        stream.write(json.dumps({"step": s, "at": s, "reward/accuracy": s / 16, "kl": 0.5**s}) + "\\n")
if sys.argv[2] == "waits":
    time.sleep(17)  # W&B writes its file every 15 seconds
mirror.sweep()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["at once", *(["waits"] if "FAULTS" in os.environ else [])])
def test_after_a_kill_the_same_run_goes_on_and_has_every_step_once(
    record: Path, tmp_path: Path, warm_python: Path, moment: str
) -> None:
    """Of the steps before the kill W&B's file has the first, if any: a kill loses what it holds in memory."""
    log(record, curve(range(1, 4)))
    say(record, "running", 1.0)
    command = [warm_python / "python", "-c", MIRROR_THAT_IS_KILLED, str(record), moment]
    killed = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": "."})
    assert killed.returncode == -signal.SIGKILL
    kept = wandb_steps(tmp_path)
    assert kept == ([1, 2, 3] if moment == "waits" else [*range(1, len(kept) + 1)])
    (board,) = tmp_path.glob("tensorboard/*/events*")
    with board.open("ab") as stream:
        stream.write(b"an event that was cut sh")
    log(record, curve(range(6, 8)))
    say(record, "finished", 1.0)
    assert Mirror().sweep() == 1
    assert Counter(wandb_steps(tmp_path)) == Counter(range(1, 8))
    assert len({file.name for file in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}) == 1, "one run"
    assert board_curve(tmp_path) == [(step, step / 16) for step in range(1, 8)]
    assert without_clock(read_run(tmp_path / "wandb").steps) == curve(range(1, 8))


def test_sessions_that_start_within_the_same_second_are_one_run(record: Path, tmp_path: Path) -> None:
    """W&B names the second one's folder offline-run-TIME-RUN-1."""
    log(record, curve(range(1, 4)))
    say(record, "stopped", 1.0)
    assert Mirror().sweep() == 1
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    folder.rename(folder.with_name(f"{folder.name}-1"))
    log(record, curve(range(4, 6)))
    say(record, "finished", 2.0)
    assert Mirror().sweep() == 1
    assert sorted(wandb_steps(tmp_path)) == [1, 2, 3, 4, 5]


def test_a_damaged_file_of_one_run_holds_up_no_other(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MATHRL_TRACKING", "wandb")
    say(record, "stopped", 1.0)
    log(record, curve(range(1, 4)))
    assert Mirror().sweep() == 1
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = bytearray(file.read_bytes())
    content[40] ^= 255
    file.write_bytes(content)
    say(record, "finished", 2.0)
    other = record.with_name("rl-k-2")
    (other / "artifacts").mkdir(parents=True)
    say(other, "finished", 3.0)
    log(other, curve(range(1, 4)))
    Mirror().sweep()
    assert "damaged at byte" in capfd.readouterr().err
    states = [TrackerState.read(folder, "wandb").complete for folder in (record, other)]
    assert states == [1.0, 3.0]


def test_a_step_that_is_done_again_after_a_resume(record: Path, tmp_path: Path) -> None:
    """TensorBoard has the new value, W&B, whose steps only grow, the first."""
    log(record, curve(range(1, 4)))
    say(record, "stopped", 1.0)
    assert Mirror().sweep() == 1
    log(record, {})
    (record / "metrics.jsonl").unlink()
    log(record, curve(range(1, 3)))
    log(record, {3: {"reward/accuracy": 0.75, "kl": 0.25}, **curve(range(4, 6))}, at=100.0)
    say(record, "finished", 50.0)
    assert Mirror().sweep() == 1
    assert board_curve(tmp_path) == [(1, 1 / 16), (2, 2 / 16), (3, 0.75), (4, 4 / 16), (5, 5 / 16)]
    assert read_run(tmp_path / "tensorboard").steps[3] == {"reward/accuracy": 0.75, "kl": 0.25}
    assert sorted(wandb_steps(tmp_path)) == [1, 2, 3, 4, 5]


def test_a_metric_that_is_refused_is_reported_once_and_costs_none_of_the_others(
    record: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = {step: {**row, "huge": 10**400, "note": f"none {step}"} for step, row in curve(range(1, 4)).items()}
    log(record, rows)
    say(record, "finished", 1.0)
    Mirror().sweep()
    err = capfd.readouterr().err
    assert err.count("TensorBoard refuses 'huge', all else is sent: OverflowError") == 1
    assert err.count("TensorBoard refuses 'note', all else is sent: ValueError") == 1
    assert board_curve(tmp_path) == [(step, step / 16) for step in range(1, 4)]
    assert wandb_steps(tmp_path) == [1, 2, 3]
    states = [TrackerState.read(record, name) for name in ("wandb", "tensorboard")]
    assert [(state.step, state.complete) for state in states] == [(3, 1.0)] * 2


def test_runs_from_before_a_tracker_was_chosen_are_sent_by_sync_alone(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATHRL_TRACKING", "mlflow")
    log(record, curve(range(1, 4)))
    say(record, "finished", 1.0)
    assert Mirror().sweep() == 1
    monkeypatch.setenv("MATHRL_TRACKING", "wandb,tensorboard")
    assert Mirror().sweep() == 1 and not (tmp_path / "wandb").exists()
    assert module.sync() == 1
    assert wandb_steps(tmp_path) == [1, 2, 3] and "mathrl.wandb" in mlflow_run().data.tags


def test_links_name_the_pages_of_a_run_without_a_login(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = {"rl": {"keep_rollouts": {"which": "all"}}}
    say(record, "running", 1.0, params=keep, prefect_flow_run="9f2e")
    MirrorState(record, run_id="4f2c", experiment="7").write()
    monkeypatch.delenv("MATHRL_OWN_SERVER", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pa55@mlflow:5000/")
    monkeypatch.setenv("MATHRL_ROLLOUTS_URI", "http://127.0.0.1:5002/")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api/")
    page, rollouts = "http://mlflow:5000/#/experiments/7/runs/4f2c", f"http://127.0.0.1:5002/{record.name}/"
    run = read_record(record)
    assert run is not None
    assert module._links(run) == {"MLflow run": "4f2c", "MLflow": page, "Rollouts": rollouts}
    assert "(http://127.0.0.1:4200/runs/flow-run/9f2e)" in run_note(run, "7", "")


def test_imported_runs_and_the_records_of_trials_are_not_sent(record: Path, tmp_path: Path) -> None:
    say(record, "finished", 1.0, resolved={"imported from": "/elsewhere"})
    assert Mirror().sweep() == 1
    say(record, "finished", 2.0, stage="trial")
    assert Mirror().sweep() == 1 and not (tmp_path / "wandb").exists()


def test_where_trackers_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_trackers() == ("wandb", "tensorboard")
    monkeypatch.delenv("MATHRL_TRACKING")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    assert chosen_trackers() == ()
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.mathrl]\ntracking = ["mlflow", "tensorboard"]\n')
    assert chosen_trackers() == ("tensorboard",)
    settings.write_text('[tool.mathrl]\ntracking = ["comet"]\n')
    with pytest.raises(UserError, match=r"tool\.mathrl\.tracking: 'comet' is no tracker; write any of mlflow, wandb"):
        chosen_trackers()
    settings.write_text('[tool.mathrl]\ntracking = "wandb"\n')
    with pytest.raises(UserError, match="write a list of trackers"):
        chosen_trackers()
    monkeypatch.setenv("MATHRL_TRACKING", "mlflow")
    assert chosen_trackers() == ()


def test_a_package_that_is_missing_is_named_before_anything_runs(
    record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirroring, "find_spec", lambda name: None)
    missing = r"MATHRL_TRACKING names wandb, which is not installed: `pip install .*'mathrl\[trackers\]'` installs it"
    with pytest.raises(UserError, match=missing), while_mirroring({}):
        pytest.fail("it runs")
    say(record, "finished", 1.0)
    assert Mirror().sweep() == 1, "a mirror goes on with MLflow"
    assert "which is not installed" in capfd.readouterr().err
