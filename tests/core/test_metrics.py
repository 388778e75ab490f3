from pathlib import Path

from mathrl.core.files import read_jsonl
from mathrl.core.metrics import JsonlSink, without_timings


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
