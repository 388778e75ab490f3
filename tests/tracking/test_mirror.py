"""Records as they come to stand: resumed, another machine's, ended while they are looked at."""

import json
import math
import os
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock
from mlflow import MlflowClient

from mathrl.core.files import write_json
from mathrl.core.guard import process_start
from mathrl.tracking import mirror as module
from mathrl.tracking.client import connect
from mathrl.tracking.mirror import Mirror

FINDING = {"rule": "truncated", "first": 2, "last": 3, "evidence": "10 %", "cause": "no room"}
HEALTH = {"colour": "yellow", "findings": [FINDING]}
NAME = "rl-k-1"


@pytest.fixture
def record(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty record of a home of its own."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(module, "_system_monitor", lambda run_id: Unwatched())  # ten seconds a sample
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    folder = tmp_path / "records" / NAME
    (folder / "artifacts").mkdir(parents=True)
    return folder


class Unwatched:
    def finish(self) -> None:
        pass


def say(record: Path, status: str, started: float, **more: Any) -> None:
    """What the stage writes of itself."""
    ended = {} if status == "running" else {"ended": started + 1}
    write_json(record / "run.json", {
        "stage": "rl", "name": "rl", "key": "k", "status": status, "started": started, "params": {},
        "pid": os.getpid(), "host": socket.gethostname(), "pipeline": "p", "pipeline_params": {}, "git": {},
        "inputs": {}, "outputs": {}, **ended, **more,
    })  # fmt: skip


def gone() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def status() -> str:
    found = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    assert len(found) <= 1
    return found[0].info.status if found else "none"


def test_a_resumed_run_is_opened_once_and_keeps_what_it_said_of_its_health_until_it_says_more(
    record: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror()
    say(record, "running", 1.0, health=HEALTH)
    mirror.sweep()
    say(record, "stopped", 1.0, health=HEALTH)
    mirror.sweep()
    assert status() == "KILLED"
    assert mirror.upload is not None
    reopened, reopen = list[str](), mirror.upload.reopen
    monkeypatch.setattr(mirror.upload, "reopen", lambda run: (reopened.append(run), reopen(run)))
    say(record, "running", 2.0)
    for _ in range(2):
        mirror.sweep()
    assert status() == "RUNNING" and len(reopened) == 1
    say(record, "stopped", 2.0)
    assert mirror.sweep() == 1 and status() == "KILLED"
    (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    assert run.data.tags["health"] == "yellow" and "health.truncated" in run.data.tags
    say(record, "running", 3.0, health={"colour": "green", "findings": []})
    mirror.sweep()
    tags = connect().get_run(run.info.run_id).data.tags
    assert tags["health"] == "green" and "health.truncated" not in tags
    assert capfd.readouterr().err == ""


def test_mlflow_has_the_forecast_of_each_dev_evaluation_once(record: Path) -> None:
    """However late the mirror looks: from the fifth on, each from the curve until it."""
    mirror, params = Mirror(), {"rl": {"steps": 80, "dev": {"samples": 4}}}
    say(record, "running", 1.0, params=params)
    for first, last in ((1, 52), (53, 80)):
        with (record / "metrics.jsonl").open("a") as file:
            for step in range(first, last + 1):
                dev = {"dev/accuracy": 0.4 + step / 200} if step % 10 == 0 else {}
                file.write(json.dumps({"step": step, "at": 1.0 + step, "loss": 0.1, **dev}) + "\n")
        mirror.sweep()
    (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    history = {
        name: connect().get_metric_history(run.info.run_id, f"forecast/dev_accuracy{name}") for name in ("", "_low")
    }
    assert [each.step for each in history[""]] == [50, 60, 70, 80]
    assert all(low.value < each.value for each, low in zip(history[""], history["_low"], strict=True))
    assert (
        run.data.tags["forecast"].startswith("if the curve keeps its shape 0.")
        and "at step 120" in run.data.tags["forecast"]
    )


def test_what_goes_wrong_after_all_went_well_is_said_again(record: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirror, wrong = Mirror(), {"rows": "of no"}
    for started in (1.0, 2.0):
        for _ in range(2):
            say(record, "running", started, health=wrong)
            mirror.sweep()
        say(record, "running", started)
        mirror.sweep()
    said = capfd.readouterr().err
    assert said.count("tracking: KeyError: 'colour'; the run goes on, `mathrl runs sync` uploads later") == 2, said


def test_rows_that_a_server_did_not_take_are_sent_again(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same mirror, which read them before the server failed."""
    with (record / "metrics.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"step": step, "at": 1.0, "loss": step / 10}) + "\n" for step in (1, 2, 3))
    say(record, "running", 1.0)
    mirror, log_batch = Mirror(), MlflowClient.log_batch
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *args, **more: fail() if more.get("metrics") else None)
    mirror.sweep()
    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    with (record / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 4, "at": 1.0, "loss": 0.4}) + "\n")
    mirror.sweep()
    (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    history = connect().get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def fail() -> None:
    raise ConnectionError("the database is locked")


def test_a_run_of_another_machine_is_left_to_it_until_it_ends(record: Path) -> None:
    mirror, other = Mirror(), {"host": "another-machine", "pid": gone()}
    say(record, "running", 1.0, **other)
    mirror.sweep()
    assert status() == "none"
    with FileLock(record / ".lock", timeout=0):  # its own mirror can have it
        pass
    say(record, "finished", 1.0, **other)
    mirror.sweep()
    assert status() == "FINISHED"


def test_a_mirror_that_ends_waits_for_another_that_has_a_stage_which_has_ended(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the flow of that stage would end without a link to its MLflow run."""
    monkeypatch.setattr(module, "FINISH_SECONDS", 600.0)
    say(record, "running", 1.0)
    with ThreadPoolExecutor(1) as thread:
        with FileLock(record / ".lock", timeout=0):
            thread.submit(Mirror().finish).result(module.FINISH_SECONDS / 2)  # one that runs belongs to another flow
            say(record, "finished", 1.0)
            ends = thread.submit(Mirror().finish)
            with pytest.raises(TimeoutError):
                ends.result(2.5 * module.EVERY_SECONDS)
            assert status() == "none"
        ends.result()
    assert status() == "FINISHED"


def test_another_machines_run_that_was_silent_for_a_day_is_killed_unless_it_ends_after_all(record: Path) -> None:
    other = {"host": "another-machine", "pid": gone()}
    say(record, "running", 1.0, **other)
    yesterday = time.time() - module.AWAY_SECONDS - 1
    os.utime(record / "run.json", (yesterday, yesterday))
    assert Mirror().sweep() == 1 and status() == "KILLED"
    say(record, "finished", 1.0, **other)
    assert Mirror().sweep() == 1 and status() == "FINISHED"
    assert Mirror().sweep() == 1


def test_a_run_whose_process_is_a_zombie_was_killed(record: Path) -> None:
    """As in a container whose first process asks for no orphan's exit status."""
    zombie = subprocess.Popen(["true"])
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    say(record, "running", 1.0, pid=zombie.pid)
    assert Mirror().sweep() == 1 and status() == "KILLED"
    zombie.wait()


def test_a_run_whose_process_is_gone_or_whose_number_another_has_taken_was_killed(record: Path) -> None:
    """As after a reboot; a record of before starts were kept is judged by the number alone."""
    own = process_start(os.getpid())
    assert own is not None
    for start in (None, own):
        say(record, "running", 1.0, pid_start=start)
        assert Mirror().sweep() == 0 and status() == "RUNNING"
    say(record, "running", 1.0, pid_start=own - 1)
    assert Mirror().sweep() == 1 and status() == "KILLED"
    say(record, "running", 2.0, pid=gone())
    assert Mirror().sweep() == 1 and status() == "KILLED"


def test_a_run_that_ends_while_its_record_is_read_was_not_killed(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(record, "running", 1.0, pid=gone())

    def is_alive(pid: int, start: int | None) -> bool:
        # The last word comes between the reading and the look at the process.
        say(record, "finished", 1.0, pid=pid)
        return False

    monkeypatch.setattr(module, "is_alive", is_alive)
    mirror = Mirror()
    assert mirror.sweep() == 1 and status() == "FINISHED"
    monkeypatch.undo()


def test_a_run_that_has_gone_on_for_hours_is_followed_at_leisure_and_its_end_at_once(record: Path) -> None:
    def steps() -> int:
        (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
        return len(connect().get_metric_history(run.info.run_id, "loss"))

    def step(number: int) -> None:
        with (record / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": number, "at": 1.0, "loss": 0.5}) + "\n")

    mirror, began = Mirror(), time.time() - 7200
    say(record, "running", began)
    for number, seen in ((1, 1), (2, 1)):
        step(number)
        mirror.sweep(patient=True)
        mirror.followed[record].due = time.time() + 3600  # however long the upload took
        assert steps() == seen
    mirror.sweep()
    assert steps() == 2, "the last sweep of a mirror sends what there is"
    step(3)
    say(record, "running", began, health=HEALTH)
    mirror.sweep(patient=True)
    assert steps() == 3, "whatever the stage says of itself is sent at once"
    say(record, "finished", began)
    mirror.sweep(patient=True)
    assert status() == "FINISHED"


def test_a_record_that_is_removed_while_it_is_followed_ends_nothing(
    record: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(record, "running", 1.0)
    other = tmp_path / "records" / "sft-k-1"
    (other / "artifacts").mkdir(parents=True)
    say(other, "running", 1.0)
    mirror = Mirror()
    mirror.sweep()
    glob, seen = Path.glob, []

    def removed_after_glob(self: Path, pattern: str) -> Any:
        files = list(glob(self, pattern))
        if self == tmp_path / "records" and not seen:
            seen.append(files)
            shutil.rmtree(other)
        return files

    monkeypatch.setattr(Path, "glob", removed_after_glob)
    say(record, "finished", 1.0)
    assert mirror.sweep() == 1 and status() == "FINISHED"
    assert len(seen[0]) == 2 and not other.exists()
    assert list(mirror.followed) == [record] and capfd.readouterr().err == ""


@pytest.mark.parametrize("again", [0.5, 0.25], ids=["to the bit", "otherwise"])
def test_a_step_that_is_done_again_is_sent_where_it_differs(record: Path, again: float) -> None:
    """Its checkpoint was after step 2, and MLflow has step 3 from before the kill."""

    def log(rows: list[tuple[int, float, float]]) -> None:
        lines = [{"step": step, "at": at, "loss": loss, "bad": math.nan, "time/step": at} for step, at, loss in rows]
        (record / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def history(name: str) -> list[tuple[int, float]]:
        client = connect()
        (run,) = client.search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
        points = sorted(client.get_metric_history(run.info.run_id, name), key=lambda point: point.timestamp)
        return [(point.step, point.value) for point in points]

    mirror = Mirror()
    say(record, "stopped", 1.0)
    log([(1, 2.0, 0.75), (2, 3.0, 0.625), (3, 4.0, 0.5)])
    mirror.sweep()
    say(record, "running", 10.0)
    log([(1, 2.0, 0.75), (2, 3.0, 0.625), (3, 11.0, again)])
    mirror.sweep()
    log([(1, 2.0, 0.75), (2, 3.0, 0.625), (3, 11.0, again), (4, 12.0, 0.125)])
    say(record, "finished", 10.0)
    mirror.sweep()
    mirror.sweep()
    changed = [(3, 0.25)] if again == 0.25 else []
    assert history("loss") == [(1, 0.75), (2, 0.625), (3, 0.5), *changed, (4, 0.125)]
    assert history("time/step") == [(1, 2.0), (2, 3.0), (3, 4.0), *((3, 11.0) for _ in changed), (4, 12.0)]


def test_an_account_without_a_name_is_its_number(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any user."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    say(record, "finished", 1.0)
    assert Mirror().sweep() == 1
    (run,) = connect().search_runs(["1"], f"tags.`mathrl.record` = '{NAME}'")
    assert run.data.tags["mlflow.user"] == "4242424"
