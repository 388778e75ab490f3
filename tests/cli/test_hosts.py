"""Who gets in: servers listen on loopback unless they ask for a login, and answer no page of the web."""

import asyncio
import base64
import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from mathrl.cli import ui
from mathrl.cli.serve import check_key
from mathrl.cli.ui import check_host
from mathrl.core.errors import UserError
from mathrl.models.base import make_base
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.reports.rollout_server import Library, make_server
from mathrl.servers import serve
from mathrl.servers.protocol import KEY, Login, login_headers
from mathrl.tasks.prefect_server import own_server
from mathrl.tracking.client import connect, experiment
from tests.conftest import hold_port
from tests.foreign_requests import check_refused

ROOT = Path(__file__).parents[2]
OPENS = re.compile(
    r"""HTTPServer|serve_forever|make_server|create_server|start_server\(|run_server|uvicorn\b|"--port"|--port "|"""
    r"""\.listen\(|\.bind\(|rdzv|TCPStore|init_process_group|port: Annotated.int"""
)
UI = "tests/platform/test_ui.py::test_other_pages_and_host_names_are_refused_at_every_port"
VLLM = "tests/cli/test_hosts.py::test_a_vllm_server_without_a_key_answers_no_page"
RANKS = "no HTTP: the ranks of a stage meet here, in torch's own protocol"
# Every file that opens a port: the test that asks there as a page of the web can, or why none can.
PORTS = {
    "mathrl/cli/ui.py": UI,
    "tasks/prefect_server.py": UI,  # that of a command: test_the_prefect_server_of_a_command_answers_it_alone
    "mlflow/postgres-s3.sh": UI,  # as `mathrl ui` starts it
    "mlflow/sqlite.sh": UI,
    "mathrl/cli/runs.py": "tests/cli/test_hosts.py::test_the_page_of_rollouts_answers_no_other_page",
    "mathrl/reports/rollout_server.py": "tests/cli/test_hosts.py::test_the_page_of_rollouts_answers_no_other_page",
    "mathrl/cli/sweep.py": "tests/sweeps/test_run.py::test_the_dashboard_is_served_on_loopback",
    "mathrl/cli/serve.py": VLLM,
    "mathrl/servers/serve.py": VLLM,
    "mathrl/cli/launch.sbatch.j2": "no page: a cluster's nodes, whose vLLM servers ask for the key that the job draws",
    "mathrl/cli/launch.jobset.yaml.j2": "no page: a cluster's pods, whose vLLM servers ask for the secret's key",
    "mathrl/rollout/launch.py": RANKS,
    "mathrl/rollout/ranks.py": RANKS,
    "mathrl/learners/distributed.py": RANKS,
    "mathrl/servers/weight_transfer.py": "no HTTP: NCCL's own protocol, between a run and its vLLM servers",
}  # fmt: skip


def test_every_file_that_opens_a_port_is_listed() -> None:
    files = [
        file
        for folder in ("mathrl", "tasks", "flows", "mlflow")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".j2", ".sh")
    ]
    opening = {str(file.relative_to(ROOT)) for file in files if OPENS.search(file.read_text(encoding="utf-8"))}
    assert opening == set(PORTS), "list it in PORTS, with the test that asks it as a page of the web can"
    for walk in PORTS.values():
        file, _, name = walk.partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(), walk


@contextmanager
def in_thread(server: Any) -> Iterator[str]:
    """Serve requests in a thread; the address."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_of_rollouts_answers_no_other_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    with in_thread(make_server(Library({}))) as url:
        for path in ("/", "/health"):
            check_refused(url + path)


def test_the_prefect_server_of_a_command_answers_it_alone(
    tmp_path: Path, empty_prefect: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for a login that only the command has: other users of the machine reach the port as well."""
    monkeypatch.setattr(sys, "executable", str(warm_python / "python"))
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(shutil.copytree(empty_prefect, tmp_path / "prefect")))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with own_server() as wait:
        wait()
        login = os.environ["PREFECT_API_AUTH_STRING"]
        credentials = f"Basic {base64.b64encode(login.encode()).decode()}"
        check_refused(f"{os.environ['PREFECT_API_URL']}/flow_runs/filter", {}, credentials=credentials)
        check_refused(f"{os.environ['PREFECT_API_URL']}/flows/", {"name": "a"}, credentials=credentials)
    assert len(login) > 40 and not {"PREFECT_API_AUTH_STRING", "PREFECT_API_URL"} & set(os.environ)


CHANGE_AN_AUTOMATION = """
import asyncio, faulthandler
faulthandler.dump_traceback_later(240, exit=True)
from httpx import ASGITransport, AsyncClient
from prefect.server.events import triggers
from mathrl.tasks.prefect_server import app

made = {"name": "a", "trigger": {"type": "event", "posture": "Reactive", "expect": ["a"], "threshold": 1, "within": 0},
        "actions": [{"type": "do-nothing"}]}

async def main():
    async with AsyncClient(transport=ASGITransport(app()), base_url="http://127.0.0.1:4200/api") as client:
        async with triggers._automations_lock():  # as the service that evaluates triggers does
            answer = await client.post("/automations/", json=made)
            assert answer.status_code == 201, answer.text
        while not triggers.automations_by_id:
            await asyncio.sleep(0.01)
        path = "/automations/" + answer.json()["id"]
        async with triggers._automations_lock():
            assert (await client.patch(path, json={"enabled": False})).status_code == 204
        while triggers.automations_by_id:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_prefect_answers_while_the_automations_that_it_has_are_in_use(
    tmp_path: Path, empty_prefect: Path, warm_python: Path
) -> None:
    """Its event loop waited for them in Prefect 3.7, and never went on (PrefectHQ/prefect#23055)."""
    home = shutil.copytree(empty_prefect, tmp_path / "prefect")
    environment = os.environ | {"PREFECT_HOME": str(home), "PREFECT_API_BLOCKS_REGISTER_ON_START": "0"}
    command = [warm_python / "python", "-c", CHANGE_AN_AUTOMATION]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_vllm_server_without_a_key_answers_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middleware of the command that starts it, over HTTP, in front of an application that answers everything."""
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.setattr(serve, "check_vllm", lambda: None)  # its command is made, not run
    make_base(Model(), tmp_path / "model", seed=0)
    command = serve.serve_command(tmp_path / "model", Model(), Rollout(), "127.0.0.1", 8001)
    middleware = [command[number + 1] for number, word in enumerate(command) if word == "--middleware"]

    async def everything(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    module, _, name = middleware[-1].rpartition(".")  # vLLM puts the last one around the others
    guarded = getattr(importlib.import_module(module), name)(everything)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        check_refused(f"{url}/v1/completions", {"prompt": "1 + 1"})
        check_refused(f"{url}/collective_rpc", {"method": "read"})
        check_refused(f"{url}/health")
        server.should_exit = True
        thread.join()


def test_loopback_needs_nothing_and_another_host_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "127.0.0.53", "::1"):
        check_host(host, False, {})
    login = {"PREFECT_SERVER_API_AUTH_STRING": "a:b"}
    for host in ("0.0.0.0", "::", "192.168.1.7", "my-server", "127.0.0.1.example"):
        with pytest.raises(UserError, match=r"--host .* start flows and change runs: keep 127.0.0.1 .* --open"):
            check_host(host, False, login)
        with pytest.raises(UserError, match="PREFECT_SERVER_API_AUTH_STRING is not set"):
            check_host(host, True, {})
        for wrong in ({}, {"MLFLOW_AUTH_CONFIG_PATH": ""}, {"MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "none")}):
            with pytest.raises(UserError, match="MLFLOW_AUTH_CONFIG_PATH names no file"):
                check_host(host, True, login | wrong)


def test_with_both_logins_it_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "basic_auth.ini").write_text("[mlflow]\n")
    servers = {"PREFECT_SERVER_API_AUTH_STRING": "a:b", "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "basic_auth.ini")}
    with pytest.raises(UserError, match="MLFLOW_TRACKING_USERNAME is not set, so flows could not write"):
        check_host("0.0.0.0", True, servers)
    login = servers | {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": "b"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .*mlflow\[auth\]"):
        check_host("0.0.0.0", True, login)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    check_host("0.0.0.0", True, login)


def test_an_open_mlflow_asks_for_the_login_and_answers_to_its_own_name_alone(
    tmp_path: Path, empty_store: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `mathrl ui --open --host NAME` starts it, asked by flows and by a browser."""
    pytest.importorskip("flask_wtf", reason="pip install 'mlflow[auth]'")
    host, password = socket.gethostname(), "0wn-password"
    held = hold_port("")
    port = held.getsockname()[1]
    config = tmp_path / "basic_auth.ini"
    config.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{tmp_path}/users.db\n"
        f"admin_username = admin\nadmin_password = {password}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_FLASK_SERVER_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "MATHRL_HOME": str(tmp_path),
        "PREFECT_SERVER_API_AUTH_STRING": "a:b",
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_TRACKING_USERNAME": "admin",
        "MLFLOW_TRACKING_PASSWORD": password,
    }.items():
        monkeypatch.setenv(name, value)
    check_host(host, True, os.environ)
    env, url = ui._environment(tmp_path, port + 1, port, host), f"http://{host}:{port}"
    assert env["MLFLOW_TRACKING_URI"] == url and env["PREFECT_UI_API_URL"] == f"http://{host}:{port + 1}/api"
    with (tmp_path / "log").open("wb") as log:
        command = [warm_python / "python", "-m", *ui._mlflow(port, host)]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while not ui._answers(f"{url}/health"):
            said = (tmp_path / "log").read_text()
            assert server.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        token = base64.b64encode(f"admin:{password}".encode()).decode()
        right, page = {"Authorization": f"Basic {token}"}, {"Origin": url}
        wrong = {"Authorization": f"Basic {base64.b64encode(b'admin:wrong').decode()}"}
        search = f"{url}/ajax-api/2.0/mlflow/runs/search"

        def ask(**headers: str) -> int:
            return httpx.post(search, json={"experiment_ids": ["0"]}, headers=headers, timeout=120).status_code

        assert ask() == ask(**wrong) == ask(**page) == 401
        assert ask(**right) == ask(**right, **page) == 200
        assert ask(**right, Host=f"rebound.example:{port}") == 403
        assert ask(**right, Origin="http://elsewhere.example") == 403
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)  # as the worker and its mirrors have it
        client = connect()
        run = client.create_run(experiment(client))
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        held.close()


def test_whoever_listens_everywhere_answers_to_all_names_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_SERVER_ALLOWED_HOSTS", raising=False)
    monkeypatch.setenv("MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", "https://mlflow.example")
    given = ui._open_environment(4200, 5000, "0.0.0.0")
    names = given["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {f"{socket.gethostname()}:5000", "127.0.0.1:5000"} <= set(names) and "*" not in "".join(names)
    assert given["PREFECT_UI_API_URL"] == f"http://{socket.gethostname()}:4200/api"
    assert given["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == "https://mlflow.example", "a proxy's, say"
    assert len(given["MLFLOW_FLASK_SERVER_SECRET_KEY"]) == 64


def test_a_vllm_server_for_others_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    check_key("127.0.0.1")
    with pytest.raises(UserError, match=r"--host 0.0.0.0 .* replace the weights: .*MATHRL_SERVE_KEY"):
        check_key("0.0.0.0")
    monkeypatch.setenv(KEY, "\n")
    with pytest.raises(UserError, match="--host"):
        check_key("0.0.0.0")
    assert login_headers() == {}
    monkeypatch.setenv(KEY, "k")
    check_key("0.0.0.0")


@pytest.mark.parametrize("key", ["right", "schlüssel", "of a mounted secret\n"])
def test_every_request_to_it_without_the_key_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, key)
    reached: list[str] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def ask(path: str, headers: Any) -> int:
        transport = httpx.ASGITransport(Login(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post(path, headers=headers)).status_code

    for path in ("/v1/completions", "/collective_rpc", "/health"):
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
            assert asyncio.run(ask(path, wrong)) == 401
    assert reached == []
    assert asyncio.run(ask("/collective_rpc", login_headers())) == 200
