"""A new local store that several processes open at once; rows, names and values as MLflow gets them."""

import os
import subprocess
from pathlib import Path

import pytest

from mathrl.cli.ui import _store
from mathrl.core.errors import UserError, without_logins
from mathrl.core.metrics import JsonlSink
from mathrl.core.paths import tracking_uri
from mathrl.core.records import RunRecord
from mathrl.sweeps.study import _url
from mathrl.tracking.client import check_answers, connect
from mathrl.tracking.trackers import MetricsTail, new_rows
from mathrl.tracking.upload import flatten

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


def test_nested_parameters_become_dotted_names_with_json_values() -> None:
    values = {"rl": {"optimizer": {"lr": 5e-4, "type": "muon"}, "ks": [1, 2], "options": {}, "ema": None}}
    assert flatten(values) == {
        "rl.optimizer.lr": "0.0005",
        "rl.optimizer.type": "muon",
        "rl.ks": "[1, 2]",
        "rl.options": "{}",
        "rl.ema": "null",
    }


def test_a_password_is_never_shown() -> None:
    assert without_logins("https://me:secret@host:5000/x") == "https://host:5000/x"
    for password in ("secret", "se/cret", "secret?", "#secret"):  # as SQLAlchemy reads them
        assert without_logins(f"postgresql://me:{password}@host:5/d") == "postgresql://host:5/d"
    for address in ("https://host:5000/a@b", "postgresql://host:5/d", "sqlite:////home/a:b@c/d", "http://[::1]:5/"):
        assert without_logins(address) == address
    with pytest.raises(UserError) as caught:
        check_answers("http://me:secret@127.0.0.1:9")
    assert "secret" not in str(caught.value) and "127.0.0.1:9" in str(caught.value)
    assert "mathrl ui" in str(caught.value)
    with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI is 'http://localhost:50O0': Port could not be cast"):
        check_answers("http://me:secret@localhost:50O0")


def test_a_password_is_taken_out_of_what_libraries_say() -> None:
    said = "API request to https://me:p@55@host:5000/api?x=a@b failed; see http://h/a@b and postgresql://h/d"
    assert without_logins(said) == said.replace("me:p@55@", "")


def test_a_postgresql_address_names_the_driver_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLAlchemy 2.1 reads postgresql:// as psycopg 3, which is not installed: both readers name psycopg2."""
    for given in ("postgresql://me:secret@h/d", "postgres://me:secret@h/d", "postgresql+psycopg2://me:secret@h/d"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        assert tracking_uri() == _store() == "postgresql+psycopg2://me:secret@h/d"
        monkeypatch.setenv("MATHRL_SWEEP_STORAGE", given)
        assert _url() == tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://me:secret@127.0.0.1:9/d")
    with pytest.raises(UserError, match=r"psycopg is missing: .*address is postgresql://USER") as caught:
        connect()
    assert "secret" not in str(caught.value)


def test_a_local_file_always_answers(tmp_path: Path) -> None:
    check_answers(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    assert (tmp_path / "new").is_dir()
