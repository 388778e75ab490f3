"""A process that runs flows is killed with all that it started: its flow run has crashed once no heartbeat comes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import hold_port, wait_for
from tests.platform.conftest import QUIET, ROOT

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("FAULTS" not in os.environ, reason="waits a minute for a heartbeat; make faults"),
]
SERVE = """
import time
from prefect import flow
@flow
def sleeper():
    time.sleep(900)
if __name__ == "__main__":
    sleeper.serve(name="sleeper")
"""


def test_the_run_of_a_killed_worker_has_crashed(tmp_path: Path) -> None:
    """The automation of prefect.yaml, with a window of 45 seconds and a heartbeat every 30, the least of Prefect."""
    text, held = (ROOT / "prefect.yaml").read_text(), hold_port()
    port = held.getsockname()[1]
    assert text.count("within: 600") == 1
    (tmp_path / "prefect.yaml").write_text(text.replace("within: 600", "within: 45"))
    (tmp_path / "serve.py").write_text(SERVE)
    api = f"http://127.0.0.1:{port}/api"
    env = os.environ | QUIET | {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": api}
    env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = "30"

    def post(path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            api + path, json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"{api}/health", timeout=5))
        except OSError:
            return False

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words]
        return subprocess.Popen(command, env=env, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)

    def state() -> dict[str, Any]:
        return dict(post("/flow_runs/filter", flow_runs={"id": {"any_": [run]}})[0]["state"])

    processes = [start("-m", "prefect", "server", "start", "--port", str(port))]
    try:
        wait_for(answers)
        assert start("-m", "prefect", "automation", "create", "--from-file", "prefect.yaml").wait(120) == 0
        processes.append(start("serve.py"))
        (deployment,) = wait_for(lambda: post("/deployments/filter"))
        run = post(f"/deployments/{deployment['id']}/create_flow_run")["id"]
        wait_for(lambda: state()["type"] == "RUNNING")
        time.sleep(5)  # the first heartbeat has come
        os.killpg(processes.pop().pid, signal.SIGKILL)
        wait_for(lambda: state()["type"] != "RUNNING", seconds=150)
        assert state()["type"] == "CRASHED" and "worker or machine died" in state()["message"]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
