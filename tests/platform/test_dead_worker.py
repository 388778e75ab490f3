"""A worker that is killed with all that it started: its flow run counts as crashed once no heartbeat comes."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.platform.ui_servers import Servers

Checkout = Any
pytestmark = pytest.mark.timeout(900)


def test_the_run_of_a_killed_worker_has_crashed(checkout: Checkout, tmp_path: Path) -> None:
    file = checkout.folder / "prefect.yaml"
    text = file.read_text()
    assert text.count("within: 600") == 1
    file.write_text(text.replace("within: 600", "within: 45"))
    checkout.env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = "30"  # the least
    (tmp_path / "silent").write_text("evaluate")  # before the start: every program is then a process of its own
    servers = Servers(checkout, tmp_path / "pid")
    ui = psutil.Process(servers.process.pid)
    try:
        (automation,) = [each for each in servers.post("/automations/filter", {}) if "heartbeats" in each["name"]]
        assert automation["enabled"]
        run = servers.start("evaluate")
        while not (tmp_path / "pid").exists():
            time.sleep(0.5)
        time.sleep(40)  # a heartbeat came, and one more keeps the run going
        assert state(servers, run)["type"] == "RUNNING"
        (worker,) = [child for child in ui.children() if "worker" in child.cmdline()]
        ui.suspend()  # else it would end the servers, since a program of its own has ended
        killed = time.monotonic()
        for process in [worker, *worker.children(recursive=True)]:
            process.kill()
        while state(servers, run)["type"] != "CRASHED":
            assert time.monotonic() < killed + 150, state(servers, run)
            time.sleep(1)
        print(f"crashed {time.monotonic() - killed:.0f} s after the worker was killed")
        assert "worker or machine died" in state(servers, run)["message"]
    finally:
        ui.resume()
        servers.process.terminate()
        servers.process.wait(timeout=60)


def state(servers: Servers, run: str) -> dict[str, Any]:
    found: dict[str, Any] = servers.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})[0]["state"]
    return found
