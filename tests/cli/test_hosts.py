"""Who gets in: servers listen on loopback unless they ask for a login."""

import asyncio
import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mathrl.cli import ui
from mathrl.cli.serve import check_key
from mathrl.cli.ui import check_host
from mathrl.core.errors import UserError
from mathrl.core.paths import shown
from mathrl.rollout.vllm_login import KEY, Login, login_headers
from mathrl.tracking.client import connect, experiment


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.53", "::1"])
def test_loopback_needs_nothing(host: str) -> None:
    check_host(host, False, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "my-server", "127.0.0.1.example"])
def test_another_host_is_refused_with_what_to_do(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--host .* start flows and change runs: keep 127.0.0.1 .* --open"):
        check_host(host, False, {"PREFECT_SERVER_API_AUTH_STRING": "a:b"})
    with pytest.raises(UserError, match="PREFECT_SERVER_API_AUTH_STRING is not set"):
        check_host(host, True, {})
    login = {"PREFECT_SERVER_API_AUTH_STRING": "a:b"}
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
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `mathrl ui --open --host NAME` starts it, asked by flows and by a browser."""
    pytest.importorskip("flask_wtf", reason="pip install 'mlflow[auth]'")
    host, password = socket.gethostname(), "0wn-password"
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
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
        server = subprocess.Popen(
            [sys.executable, "-m", *ui._mlflow(port, host)], env=env, stdout=log, stderr=log, start_new_session=True
        )
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
            return httpx.post(search, json={"experiment_ids": ["0"]}, headers=headers).status_code

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


def test_whoever_listens_everywhere_answers_to_all_names_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_SERVER_ALLOWED_HOSTS", raising=False)
    monkeypatch.setenv("MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", "https://mlflow.example")
    given = ui._open_environment(4200, 5000, "0.0.0.0")
    names = given["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {f"{socket.gethostname()}:5000", "127.0.0.1:5000"} <= set(names) and "*" not in "".join(names)
    assert given["PREFECT_UI_API_URL"] == f"http://{socket.gethostname()}:4200/api"
    assert given["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == "https://mlflow.example", "a proxy's, say"
    assert len(given["MLFLOW_FLASK_SERVER_SECRET_KEY"]) == 64


def test_an_address_is_shown_without_its_password() -> None:
    assert shown("postgresql://user:pa55@db:5432/mlflow") == "postgresql://db:5432/mlflow"
    assert shown("http://user:pa55@host:5000") == "http://host:5000"
    assert shown("sqlite:////home/a/mlflow.db") == "sqlite:////home/a/mlflow.db"


def test_a_vllm_server_for_others_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    check_key("127.0.0.1")
    with pytest.raises(UserError, match=r"--host 0.0.0.0 .* replace the weights: .*MATHRL_SERVE_KEY"):
        check_key("0.0.0.0")
    assert login_headers() == {}
    monkeypatch.setenv(KEY, "k")
    check_key("0.0.0.0")


def test_every_request_to_it_without_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "right")
    reached: list[str] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def ask(path: str, headers: dict[str, str]) -> int:
        transport = httpx.ASGITransport(Login(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post(path, headers=headers)).status_code

    for path in ("/v1/completions", "/collective_rpc", "/health"):
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
            assert asyncio.run(ask(path, wrong)) == 401
    assert reached == []
    assert asyncio.run(ask("/collective_rpc", login_headers())) == 200
