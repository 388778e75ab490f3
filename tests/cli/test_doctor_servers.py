"""What the doctor says of vLLM servers: those that are named, and those that a running stage samples from."""

import os
from pathlib import Path

import pytest

from mathrl.cli.doctor import sampling_servers
from mathrl.core.guard import process_start
from mathrl.core.records import RunRecord
from mathrl.servers.protocol import ServerState, read_states, servers_text, write_states
from mathrl.servers.server import SentWeights
from mathrl.servers.server_pool import ServerPool
from tests.servers.stand import Stand, params


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server may be silent for seconds."""
    for module in ("protocol", "server"):
        monkeypatch.setattr(f"mathrl.servers.{module}.SECONDS", 60.0)


def test_named_servers_are_asked_and_those_of_running_stages_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    assert sampling_servers() == []
    server = Stand()
    try:
        monkeypatch.setenv("MATHRL_SERVERS", "http://127.0.0.1:800O")
        (mistyped,) = sampling_servers()
        monkeypatch.setenv("MATHRL_SERVERS", f"{server.url},http://127.0.0.1:9")
        named = sampling_servers()
        server.digest = "9f86d081"
        assert sampling_servers()[0][1] == f"vLLM server {server.url} is live (generation 1, weights 9f86d081)"
    finally:
        server.shutdown()
        server.server_close()
    assert mistyped[1] == "vLLM server http://127.0.0.1:800O does not answer as a vLLM server (InvalidURL)"
    assert named == [
        ("ok", f"vLLM server {server.url} is live (generation 1, weights not sent yet)", ""),
        (
            "missing",
            "vLLM server http://127.0.0.1:9 does not answer as a vLLM server (ConnectError)",
            "mathrl serve MODEL --port 9",
        ),
    ]
    monkeypatch.delenv("MATHRL_SERVERS")
    states = [ServerState("http://a:1", True, 5, "9f86", ""), ServerState("http://a:2", False, 7, "", "it broke off")]
    own = process_start(os.getpid())
    assert own is not None
    other = own - 1  # of a process that was killed
    for name, status, start in (("rl-1-1", "running", own), ("rl-1-2", "finished", own), ("rl-1-3", "running", other)):
        folder = tmp_path / "records" / name
        folder.mkdir(parents=True)
        RunRecord(folder).update(stage="rl", status=status, pid=os.getpid(), pid_start=start)
        monkeypatch.setenv("MATHRL_RECORD", str(folder))
        write_states(states)
    assert sampling_servers() == [
        ("ok", "vLLM server http://a:1 is live (generation 5, weights 9f86), as rl-1-1 last saw it", ""),
        ("other", "vLLM server http://a:2: it broke off, as rl-1-1 last saw it", ""),
    ]


def test_a_run_notes_its_servers_whenever_one_comes_or_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MATHRL_RECORD", str(tmp_path))
    assert read_states(tmp_path) == [] and servers_text([]) == ""
    one, two = Stand(), Stand()
    try:
        pool = ServerPool(params(one, two))
        pool.send(SentWeights("/weights/1", "digest 1"))
        assert [(state.url, state.alive, state.weights) for state in read_states(tmp_path)] == [
            (one.url, True, "digest 1"),
            (two.url, True, "digest 1"),
        ]
        pool.died(pool.servers[1], RuntimeError("it broke off"))
        assert servers_text(read_states(tmp_path)) == "; 1 of 2 servers live"
        assert read_states(tmp_path)[1].failure == "it broke off"
        monkeypatch.setenv("RANK", "1")  # the other ranks have the same servers
        pool.revive()
        assert servers_text(read_states(tmp_path)) == "; 1 of 2 servers live"
    finally:
        for server in (one, two):
            server.shutdown()
            server.server_close()
