"""Which network gloo and NCCL listen on: loopback where all ranks and servers are on this machine."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.params.load import stage_params
from mathrl.rollout.launch import loopback_variables
from mathrl.stages.stage_run import run_stage

ROOT = Path(__file__).parents[2]
LOOPBACK = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
BOTH = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
GLOO = {"GLOO_SOCKET_IFNAME": LOOPBACK}
VERL = ("rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant",
        "rl.optimizer.lr=0.02", "rl.optimizer.warmup_steps=0")  # fmt: skip
SERVERS = ("rollout.engine=vllm_server", "rollout.servers.folder=/shared")


@pytest.mark.parametrize(
    ("stage", "overrides", "environment", "expected"),
    [
        ("sft", (), {}, BOTH),
        ("sft", (), {"NCCL_SOCKET_IFNAME": "eth1"}, GLOO),
        ("sft", (), BOTH, {}),
        ("sft", (), {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, BOTH),
        ("sft", (), {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, {}),
        ("rl", (*SERVERS, "rollout.servers.start=1"), {}, BOTH),
        ("rl", (*SERVERS, "rollout.servers.urls=['http://127.0.0.1:8001','http://localhost:8002']"), {}, BOTH),
        ("rl", (*SERVERS, "rollout.servers.urls=['http://127.0.0.1:8001','http://node3:8001']"), {}, GLOO),
        (
            "rl",
            (*SERVERS, "rollout.servers.urls=['http://127.0.0.1:8001']"),
            {"MATHRL_SERVERS": "http://node3:1"},
            GLOO,
        ),
        ("rl", VERL, {}, BOTH),
        ("sft", (*VERL, "rl.engine.nodes=2", "rl.engine.ray_address=auto"), {}, BOTH),
        ("rl", (*VERL, "rl.engine.nodes=2", "rl.engine.ray_address=auto"), {}, {}),
        ("rl", (*VERL, "rl.engine.ray_address=10.0.0.1:6379"), {}, {}),
    ],
)
def test_what_is_all_on_this_machine_stays_on_loopback(
    stage: str, overrides: tuple[str, ...], environment: dict[str, str], expected: dict[str, str]
) -> None:
    params = stage_params(load_params(ROOT / "params", overrides=overrides), stage)
    assert loopback_variables(stage, params, environment) == expected


def test_a_stage_sets_the_variables_that_its_ranks_inherit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set already stays. That ranks listen there alone: test_launch.py."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    for name, value in (
        ("NCCL_SOCKET_IFNAME", "eth1"),
        ("MATHRL_MIRROR", "none"),
        ("MATHRL_HOME", str(tmp_path / "home")),
    ):
        monkeypatch.setenv(name, value)
    found: list[dict[str, str | None]] = []
    before = signal.getsignal(signal.SIGTERM)
    try:
        run_stage(
            "sft", lambda run: found.append({name: os.environ.get(name) for name in BOTH}), inputs=[], outputs=[],
            overrides=["run.processes=1", "run.device=cpu"],
        )  # fmt: skip
    except SystemExit as end:
        assert not end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == [BOTH | {"NCCL_SOCKET_IFNAME": "eth1"}]
