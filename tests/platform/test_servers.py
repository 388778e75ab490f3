"""The stores that a team has: MLflow over PostgreSQL and S3, DVC remotes in a folder and in S3.

PostgreSQL is a real one of this test's own; S3 is moto's server.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import postgres_server

ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-the-store", "AWS_DEFAULT_REGION": "us-east-1"}
Checkout = Any


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """moto's S3 with an empty bucket `store`; its address."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[s3]' dvc-s3")
    boto3 = pytest.importorskip("boto3", reason="pip install 'moto[s3]' dvc-s3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="x", region_name="us-east-1"
    )
    client.create_bucket(Bucket="store")
    yield url
    server.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server("mlflow") as uri:
        yield uri


@pytest.fixture
def server(
    postgres: str, s3: str, tmp_path: Path, held_port: socket.socket
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """mlflow/postgres-s3.sh over both; its address."""
    port = held_port.getsockname()[1]
    environment = (
        os.environ
        | KEYS
        | {
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
            "MLFLOW_POSTGRES": postgres,
            "MLFLOW_BUCKET": "s3://store/artifacts",
            "MLFLOW_S3_ENDPOINT_URL": s3,
        }
    )
    environment.pop("MLFLOW_TRACKING_URI", None)
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(
        [ROOT / "mlflow" / "postgres-s3.sh", str(port)],
        cwd=tmp_path,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            break
        except OSError:
            said = (tmp_path / "server.log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.3)
    yield f"http://127.0.0.1:{port}", process
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=300)


def test_runs_go_to_postgresql_and_files_to_s3(
    server: tuple[str, subprocess.Popen[bytes]], s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mathrl.tracking.client import connect, experiment

    url, process = server
    command = Path(f"/proc/{process.pid}/cmdline").read_text()
    assert "mlflow" in command and "pa55" not in command and "s3cr3t" not in command
    for name in KEYS:  # a client has none
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    client = connect()
    run = client.create_run(experiment(client)).info.run_id
    client.log_metric(run, "reward/accuracy", 0.5, step=3)
    (tmp_path / "report.html").write_text("<p>hello</p>")
    client.log_artifact(run, str(tmp_path / "report.html"))
    assert [(m.step, m.value) for m in client.get_metric_history(run, "reward/accuracy")] == [(3, 0.5)]
    back = client.download_artifacts(run, "report.html", str(tmp_path))
    assert Path(back).read_text() == "<p>hello</p>"
    import boto3

    store = boto3.client(
        "s3", endpoint_url=s3, aws_access_key_id="key", aws_secret_access_key="x", region_name="us-east-1"
    )
    assert any(run in each["Key"] for each in store.list_objects_v2(Bucket="store")["Contents"])
    assert not (tmp_path / "mlflow.db").exists() and not (tmp_path / "mlruns").exists()


def test_the_server_says_what_it_needs() -> None:
    done = subprocess.run(
        [ROOT / "mlflow" / "postgres-s3.sh"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode and "MLFLOW_POSTGRES: give it as postgresql://" in done.stderr


@pytest.mark.parametrize("script", ["sqlite.sh", "postgres-s3.sh"])
@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--host=0.0.0.0"], ["-h", "::"]])
def test_a_server_for_others_asks_for_a_login(script: str, words: list[str]) -> None:
    def said(*command: str, path: str) -> tuple[int, str]:
        done = subprocess.run(
            [ROOT / "mlflow" / script, *command], capture_output=True, text=True, check=False, env={"PATH": path}
        )
        return done.returncode, done.stderr

    code, refused = said("5000", *words, path=os.environ["PATH"])
    assert code == 2 and "add --app-name basic-auth" in refused
    code, other = said("5000", *words, "--app-name", "basic-auth", path="/nowhere")
    assert code and "basic-auth" not in other, "it is let through, to the next obstacle"


def test_a_fresh_clone_pulls_from_a_remote_and_has_nothing_to_do(checkout: Checkout, s3: str, tmp_path: Path) -> None:
    """A remote in a folder: test_reproduce.py."""
    environment = dict(KEYS)
    checkout.repro("mix", MATHRL_MIRROR="none")
    checkout.run("dvc", "remote", "add", "-d", "store", "s3://store/dvc")
    checkout.run("dvc", "remote", "modify", "store", "endpointurl", s3)
    checkout.git("add", "-A", "dvc.lock", ".dvc", ".gitignore")
    checkout.git("commit", "-q", "-m", "a remote in S3")
    checkout.run("dvc", "push", **environment)
    clone = tmp_path / "clone"
    checkout.git("clone", "-q", str(checkout.folder), str(clone))
    assert not (clone / "models" / "sft").exists()
    checkout.run("dvc", "pull", "sft", "curate", "difficulty", "mix", cwd=clone, **environment)
    assert (clone / "models/sft/summary.json").read_bytes() == (
        checkout.folder / "models/sft/summary.json"
    ).read_bytes()
    done = checkout.run("dvc", "repro", "mix", cwd=clone, **environment)
    assert set(re.findall("Running stage '([^']*)'", done.stdout)) <= {"code", "resolve"}, "what is pulled is not run"
    # A changed parameter has something to do: the clone is a whole workspace.
    file = clone / "params" / "difficulty.yaml"
    file.write_text("samples: 9\n")
    assert "modified:           params" in checkout.run("dvc", "status", "resolve", cwd=clone, **environment).stdout
    checkout.run("dvc", "repro", "resolve", cwd=clone, **environment)
    status = checkout.run("dvc", "status", "difficulty", cwd=clone, **environment).stdout
    assert "modified:           difficulty" in status
