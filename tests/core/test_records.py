"""The records of runs, written, read and found again, old ones and half-written ones too; their metrics."""

import json
import shutil
from pathlib import Path

import pytest

from mathrl.core import records as module
from mathrl.core.files import read_jsonl, write_json
from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.records import (
    MirrorState,
    RunRecord,
    all_records,
    maker_of,
    newest_record,
    open_record,
    read_record,
    written_times,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    return tmp_path


def make(folder: str, /, **fields: object) -> RunRecord:
    record = RunRecord(module.records_folder() / folder)
    record.update(**fields)
    return record


def test_a_record_is_read_as_it_was_written() -> None:
    fields = {"stage": "rl", "name": "demo/rl-1", "started": 1.5, "summary": {"dev/\ud83d": 0.5}, "inputs": {"a": "7"}}
    record = make("demo-rl-1-k-1", **fields, measured={"models": {"rl": "models/rl"}, "dataset": "test"})
    record.update(health={"colour": "green", "findings": []}, outputs={"models/rl": "71"})
    assert read_record(record.folder) == record
    assert record.step == "rl-1" and record.status == "running" and record.ended is None


def test_a_record_of_an_older_or_newer_mathrl_is_read(home: Path) -> None:
    old = {"stage": "rl", "status": "finished", "git": {"commit": "c0ffee", "dirty": True}, "health": None}
    write_json(home / "records/rl-k-1/run.json", old | {"from_a_newer_one": 1})
    record = read_record(home / "records/rl-k-1")
    assert record is not None and (record.name, record.commit, record.dirty) == ("rl", "c0ffee", True)
    assert record.outputs == {} and record.health is None


@pytest.mark.parametrize("text", ["", "{", '{"stage": "r', "[1]", '"text"'])
def test_a_half_written_record_is_none_and_the_others_are_there(home: Path, text: str) -> None:
    make("rl-k-1", stage="rl")
    (home / "records/sft-k-1").mkdir()
    (home / "records/sft-k-1/run.json").write_text(text)
    (home / "records/empty").mkdir()
    assert read_record(home / "records/sft-k-1") is None and read_record(home / "records/nothing") is None
    assert [record.stage for record in all_records()] == ["rl"]


def test_records_are_found_in_the_order_in_which_they_were_written(home: Path) -> None:
    first, second = make("rl-a-1", stage="rl", prefect_flow_run="f"), make("sft-a-1", stage="sft", outputs={"m": "7"})
    third = make("rl-b-1", stage="rl", outputs={"m": "7"})
    assert [record.folder for record in all_records()] == [first.folder, second.folder, third.folder]
    first.update(status="finished")
    assert [record.folder for record in all_records()] == [second.folder, third.folder, first.folder]
    assert maker_of("m", "7") == third and maker_of("m", "8") is None
    assert newest_record(lambda record: record.prefect_flow_run == "f") == first
    assert newest_record(lambda record: True, prefix="rl-b-") == third
    assert list(written_times("sft-")) == [second.folder]


def test_records_of_one_tick_of_the_kernels_clock_have_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"b": 10**18, "c": 10**18 + 2000, "a": 10**18 + 1000}
    for name, time in times.items():
        monkeypatch.setattr("time.time_ns", lambda time=time: time)
        make(f"rl-{name}-1", stage="rl")
    assert [(folder.name, time) for folder, time in written_times().items()] == [
        (f"rl-{name}-1", times[name]) for name in ("b", "a", "c")
    ]


def test_a_prefix_is_no_pattern() -> None:
    make("demo[1]-a-1", stage="rl")
    make("demo1-a-1", stage="sft")
    assert [record.stage for record in all_records("demo[1]-")] == ["rl"]


def test_a_record_that_vanishes_while_they_are_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays = make("gone-1", stage="rl"), make("stays-1", stage="sft")
    modified = module._modified_at

    def vanish(file: Path) -> int | None:
        shutil.rmtree(gone.folder, ignore_errors=True)
        return modified(file)

    monkeypatch.setattr(module, "_modified_at", vanish)
    assert list(written_times()) == [stays.folder] and [record.stage for record in all_records()] == ["sft"]
    assert gone.last_change() == 0 and stays.last_change() > 0


def test_an_unfinished_run_keeps_its_record_and_a_finished_one_gets_the_next() -> None:
    first = open_record("rl", "k")
    first.update(stage="rl", status="failed", error="no room")
    again = open_record("rl", "k")
    assert again.folder == first.folder and again.error == "" and again.artifacts.is_dir()
    again.update(stage="rl", status="finished")
    assert open_record("rl", "k").folder.name == "rl-k-2"
    assert json.loads((first.folder / "run.json").read_text())["status"] == "finished"


def test_a_field_that_records_lack_is_a_mistake_of_the_writer() -> None:
    with pytest.raises(AssertionError, match="stauts"):
        make("rl-k-1", stauts="finished")


def test_what_mlflow_has_of_a_run_is_read_as_it_was_written(home: Path) -> None:
    (home / "records/rl-k-1").mkdir(parents=True)
    state = MirrorState.read(home / "records/rl-k-1")
    assert (state.run_id, state.step, state.complete) == ("", None, None)
    state.run_id, state.step, state.complete = "4f2c", 3, 1.5
    state.write()
    assert MirrorState.read(home / "records/rl-k-1") == state
    state.complete = None
    state.write()
    assert MirrorState.read(home / "records/rl-k-1").complete is None


def test_a_resumed_file_holds_each_step_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    sink = JsonlSink(file)
    for step in (1, 2, 3):
        sink.log(step, {"reward/accuracy": step / 10, "time/step": 1.0})
    with file.open("a") as stream:
        stream.write('{"step": 4, "rew')  # cut short by a kill
    resumed = JsonlSink(file, resume_after=2)
    resumed.log(3, {"reward/accuracy": 0.3, "time/step": 2.0})
    assert [row["step"] for row in read_jsonl(file)] == [1, 2, 3]
    assert without_timings(file)[-1] == {"step": 3, "reward/accuracy": 0.3}


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    JsonlSink(file).log(1, {"a": 1})
    JsonlSink(file)
    assert list(read_jsonl(file)) == []
