"""The MLflow server dies during a run and is down at its end: each step is uploaded once."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 12


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)


def serve(python: Path, folder: Path, port: int, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    server = subprocess.Popen(
        [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
         "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'served.db'}",
         "--artifacts-destination", str(folder / "artifacts")],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20).read() == b"OK")
        except OSError:
            return False

    wait_for(answers, 600, "the server")
    return server


def end(server: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(server.pid, 9)
    server.wait()


@pytest.mark.timeout(1800)
def test_steps_that_the_server_missed_are_uploaded_once(
    breakable: Callable[..., Any], empty_store: Path, warm_python: Path, held_port: socket.socket, tmp_path: Path
) -> None:
    python = warm_python / "python"
    shutil.copy(empty_store, tmp_path / "served.db")
    port: int = held_port.getsockname()[1]
    broken = breakable("run.processes=1", f"rl.steps={STEPS}", "rl.dev.every=0")
    folder = broken.workspace.folder
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    settings = {
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # as `mathrl ui` has it: eight processes less
        "MATHRL_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
        "MATHRL_MIRROR": "",
    }
    env = {key: value for key, value in (os.environ | settings).items() if value}
    server = serve(python, tmp_path, port, env)
    try:
        # The mirror has sent some steps when the server dies, and continues to the end of the run.
        process = broken.start_held("rl", 3, **settings)

        def sent() -> int:
            files = list((folder / "home" / "records").glob("rl-*/mirror.json"))
            return int(json.loads(files[0].read_text()).get("step") or 0) if files else 0

        wait_for(lambda: sent() >= 1, 600, "the first step in MLflow")
        end(server)
        sent_before_the_kill = sent()
        broken.let_go()
        _, errors = process.communicate(timeout=1000)
        assert process.returncode == 0, errors
        assert 1 <= sent_before_the_kill < STEPS and errors.count("`mathrl runs sync` uploads") == 1, errors
        assert (folder / "models" / "rl" / "model.safetensors").exists()

        server = serve(python, tmp_path, port, env)
        for _ in range(2):
            done = subprocess.run(
                [python, "-c", "from mathrl.cli import main; main()", "sync"],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        import mlflow

        client = mlflow.MlflowClient(settings["MLFLOW_TRACKING_URI"])
        experiment = client.get_experiment_by_name("mathrl")
        runs = client.search_runs([experiment.experiment_id], "tags.`dvc.stage` = 'rl'")
        assert [run.info.status for run in runs] == ["FINISHED"]
        points = client.get_metric_history(runs[0].info.run_id, "response_length")
        assert sorted(point.step for point in points) == list(range(1, STEPS + 1)), "each step once"
        rows = {row["step"]: row["response_length"] for row in broken.output("rl")[1]}
        assert {point.step: point.value for point in points} == pytest.approx(rows)
    finally:
        end(server)
