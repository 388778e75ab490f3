"""Which network gloo and NCCL listen on: loopback where all ranks and servers are on this machine."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.params.load import stage_params
from mathrl.rollout.launch import loopback_variables

ROOT = Path(__file__).parents[2]
LOOPBACK = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
BOTH = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
GLOO = {"GLOO_SOCKET_IFNAME": LOOPBACK}
VERL = ("rl.engine=verl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.schedule=constant",
        "rl.optimizer.lr=0.02", "rl.optimizer.warmup_steps=0")  # fmt: skip
SERVERS = ("rollout.engine=vllm_server", "rollout.servers.folder=/shared")
# Rank 1 too: rank 0 shows what both have.
STAGE = """
import os
from mathrl.rollout.ranks import gather
from mathrl.stages.stage_run import run_stage

def work(run):
    values = gather([[os.environ.get(f"{name}_SOCKET_IFNAME") for name in ("GLOO", "NCCL")]])
    print(values, flush=True) if values else None

if __name__ == "__main__":
    run_stage("sft", work, inputs=[], outputs=[], overrides=["run.processes=2", "run.device=cpu"])
"""


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


def test_the_ranks_of_a_stage_have_the_variables(tmp_path: Path) -> None:
    chosen = {"NCCL_SOCKET_IFNAME": "eth1"}
    shutil.copytree(ROOT / "params", tmp_path / "params")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "program.py").write_text(STAGE)
    unset = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=unset | chosen | {"PYTHONPATH": str(ROOT), "MATHRL_MIRROR": "none", "MATHRL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = [LOOPBACK, "eth1"]
    assert (done.returncode, done.stdout) == (0, f"{[[expected], [expected]]}\n"), done.stderr
