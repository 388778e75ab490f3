"""Who gets in: servers listen on loopback unless they ask for a login."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from mathrl.cli.serve import check_key
from mathrl.cli.ui import check_host
from mathrl.core.errors import UserError
from mathrl.core.places import shown
from mathrl.rollout.vllm_login import KEY, Login, login_headers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.53", "::1"])
def test_loopback_needs_nothing(host: str) -> None:
    check_host(host, False, {})


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "my-server", "127.0.0.1.example"]
)
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
    login = {
        "PREFECT_SERVER_API_AUTH_STRING": "a:b",
        "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "basic_auth.ini"),
    }
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .*mlflow\[auth\]"):
        check_host("0.0.0.0", True, login)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    check_host("0.0.0.0", True, login)


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
