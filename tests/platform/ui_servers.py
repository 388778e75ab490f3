"""What `mathrl ui` starts, for tests, with its Prefect API."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.conftest import hold_port

Checkout = Any
RUN = "from mathrl.cli import main; main()"


class Servers:
    """What `mathrl ui` started, with its Prefect API."""

    def __init__(self, checkout: Checkout, pids: Path) -> None:
        self.checkout, self.held = checkout, [hold_port() for _ in range(3)]
        self.prefect_port, self.mlflow_port, self.rollouts_port = (held.getsockname()[1] for held in self.held)
        self.words = ["ui", "--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port)]
        self.words += ["--rollouts-port", str(self.rollouts_port)]
        self.prefect, self.mlflow = (f"http://127.0.0.1:{p}" for p in (self.prefect_port, self.mlflow_port))
        self.silent = pids.with_name("silent")  # names the stage that is silent
        env = checkout.env | {"STANDIN_SILENT": f"@{self.silent}", "STANDIN_PIDS": str(pids)}
        env["USUAL_PYTHON_IF"] = str(self.silent)  # what ignores signals is ended with its process group
        self.output = pids.with_name("output")  # a file: servers that write to a full pipe stand still
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [checkout.executable, "-c", RUN, *self.words],
                cwd=checkout.folder,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 300
        while "Ctrl-C" not in self.output.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.1)

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        request = urllib.request.Request(
            f"{self.prefect}/api{path}",
            data=json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        )
        deadline = time.monotonic() + 300
        while True:  # as Prefect's client does: 503 says, after a minute, that the database is locked
            try:
                with urllib.request.urlopen(request, timeout=180) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def start(self, flow: str, **parameters: Any) -> str:
        body = {"parameters": parameters}
        return str(self.post(f"/deployments/{self.deployments()[flow]}/create_flow_run", body)["id"])

    def artifacts(self, run: str) -> dict[str, Any]:
        found = self.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
        return {each["key"]: each["data"] for each in found}

    def deployments(self) -> dict[str, str]:
        flows = {flow["id"]: flow["name"] for flow in self.post("/flows/filter", {})}
        return {flows[each["flow_id"]]: each["id"] for each in self.post("/deployments/filter", {})}

    def wait_for(self, run: str, *states: str, seconds: float = 300) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})[0]
            if found["state"]["type"] in states:
                return dict(found)
            assert found["state"]["type"] not in ("FAILED", "CRASHED"), found["state"]["message"]
            time.sleep(0.5)
        raise AssertionError(f"{run} is not {states} after {seconds} s")
