"""A new local store that several processes open at once."""

import os
import subprocess
from pathlib import Path

from mathrl.core.metrics import JsonlSink
from mathrl.core.records import RunRecord
from mathrl.tracking.trackers import MetricsTail, new_rows

OPEN = "from mathrl.tracking.client import connect, experiment; print(experiment(connect()))"


def test_the_first_clients_of_a_new_store_do_not_trip_one_another(tmp_path: Path, warm_python: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    env = given | {"MATHRL_HOME": str(tmp_path / "home")}
    command = [warm_python / "python", "-c", OPEN]  # which have their imports: both find no tables at once
    clients = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [client.communicate(timeout=800) for client in clients]
    assert [out.strip() for out, _ in said] == [b"1"] * 2, b"\n".join(err for _, err in said).decode()
    assert (tmp_path / "home" / "mlflow.db").is_file()


def test_a_metrics_file_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert new_rows(file, 0) == ([], 0)
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    rows, read = new_rows(file, 0)
    assert [row["step"] for row in rows] == [1, 2] and read == 24
    assert new_rows(file, read) == ([], 24), "half a line waits"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    assert new_rows(file, read) == ([{"step": 3}], 36)
    file.write_text('{"step": 1}\n')
    assert new_rows(file, 36) == ([{"step": 1}], 12), "it starts again"


def test_a_resumed_run_whose_file_has_grown_past_the_old_one_is_read_from_its_start(tmp_path: Path) -> None:
    """Its record is written when it starts, its metrics only once the model is loaded."""
    record, tail = RunRecord(tmp_path, started=2.0), MetricsTail()
    JsonlSink(record.metrics_file).log(1, {"loss": 0.5})
    rows, tail.bytes_read = tail.rows(record)
    assert [row["step"] for row in rows] == [1]
    resumed = JsonlSink(record.metrics_file, resume_after=0)
    for step in (1, 2, 3):
        resumed.log(step, {"loss": 0.123456789, "kl": 0.25})
    rows, _ = tail.rows(record)
    assert [row["step"] for row in rows] == [1, 2, 3]
