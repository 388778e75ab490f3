"""The command that serves a model to runs, vLLM's own server that also takes new weights; and the servers that a stage
starts itself (`rollout.servers.start`): their GPUs, their commands and their end.

Rank 0 starts them on its machine, on loopback; `server_keeper` keeps them running. Every rank uses them.
"""

import json
import multiprocessing.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mathrl.core.environment import Variable, world_size
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.gpus import Hardware
from mathrl.core.hashing import digest
from mathrl.models.device import hardware_of
from mathrl.models.load import local_folder
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.servers.protocol import login_headers
from mathrl.servers.server_keeper import END_SECONDS, ServerCommand
from mathrl.servers.vllm_arguments import (
    ENVIRONMENT,
    adapter_arguments,
    check_vllm,
    command_line,
    engine_arguments,
    transfer_arguments,
)

# On a CPU the engine runs its worker itself, with this path for an executor: vLLM makes of "uni" one more process.
ONE_WORKER = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
SERVER = {"worker_extension_cls": "mathrl.servers.vllm_worker.WeightReader", "disable_uvicorn_access_log": True}


def serve_command(
    folder: Path | str, model: Model, rollout: Rollout, host: str, port: int, lora: Adapters | None = None
) -> list[str]:
    """vLLM's OpenAI-compatible server of a model folder or hub id; see `serve_environment`.

    With `lora` it takes an adapter of that section's rank.

    Raises:
        UserError: vLLM is not installed, the folder is no model, or `rollout.servers.weights` needs a GPU.
    """
    check_vllm()
    hardware = hardware_of("cuda" if torch.cuda.is_available() else "cpu")
    arguments = server_arguments(str(local_folder(folder)), model, rollout, hardware, lora)
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--host", host, "--port", str(port)),
        *command_line(arguments),
        *("--middleware", "mathrl.servers.served_weights.ServedWeights"),
    ]
    # Around the other one: vLLM itself answers every web page that a browser on this machine shows.
    guard = "mathrl.servers.protocol.Login" if login_headers() else "mathrl.core.request_origin.OwnRequests"
    return [*command, "--middleware", guard]


def server_arguments(
    folder: str, model: Model, rollout: Rollout, hardware: Hardware, lora: Adapters | None = None
) -> dict[str, Any]:
    """The fields of vLLM's `EngineArgs`, and one of its server, for a server on this hardware."""
    engine = engine_arguments(folder, model, rollout, hardware)
    if not hardware.is_gpu and rollout.vllm.tensor_parallel == 1:
        engine["distributed_executor_backend"] = ONE_WORKER
    return {**engine, **adapter_arguments(lora), **transfer_arguments(rollout, hardware), **SERVER}


def serve_environment(rollout: Rollout, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, by which the server takes part in RL (vLLM's development endpoints) and sends no statistics."""
    shared = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    cache = {"VLLM_CPU_KVCACHE_SPACE": str(rollout.vllm.cache_gib or 1)}
    return cache | shared | dict(environment) | {"VLLM_SERVER_DEV_MODE": "1"}


HOST, TAIL_LINES = "127.0.0.1", 15
# Of a rank, not of what it starts; and what an engine in this process has set for itself.
OWN_VARIABLES = {
    Variable.RANK, Variable.WORLD_SIZE, Variable.LOCAL_RANK, Variable.RECORD, Variable.PROGRESS, Variable.MIRROR,
    "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    "MASTER_ADDR", "MASTER_PORT", "VLLM_ENABLE_V1_MULTIPROCESSING",
}  # fmt: skip
_running: "list[StartedServers]" = []  # one at most


class StartedServers:
    """The servers of this process, their keeper and the ports that it holds for them."""

    def __init__(self, key: str, commands: Sequence[ServerCommand], ports: Sequence[socket.socket], file: Path) -> None:
        self.key, self.file, self.ports = key, file, ports
        self.urls = [f"http://{HOST}:{command.port}" for command in commands]
        instructions = {"servers": [asdict(command) for command in commands], "file": str(file)}
        self.keeper = subprocess.Popen(
            [sys.executable, "-m", "mathrl.servers.server_keeper"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self.keeper.stdin is not None
        self.keeper.stdin.write(json.dumps(instructions).encode() + b"\n")
        self.keeper.stdin.flush()

    def check(self) -> None:
        """Raises UserError: no server runs or will run, with the end of the log of one."""
        servers: list[dict[str, Any]] = read_json(self.file) if self.file.exists() else []
        if self.keeper.poll() is None and not (servers and all(server["given_up"] for server in servers)):
            return
        message = "the vLLM servers of rollout.servers.start do not run"
        if servers:
            log = Path(servers[0]["log"])
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            message += (
                f": started {servers[0]['starts']} times, they ended before they listened; {log} ends with\n{tail}"
            )
        raise UserError(message)

    def close(self) -> None:
        """End the servers, and wait until they have ended."""
        if self.keeper.stdin is not None and not self.keeper.stdin.closed:
            self.keeper.stdin.close()
        try:
            self.keeper.wait(END_SECONDS + 60)  # it may stand still, and what the servers started ends by it alone
        except subprocess.TimeoutExpired:
            self.keeper.kill()  # they die with it
            self.keeper.wait()
        for port in self.ports:
            port.close()


def start_servers(folder: Path | str, model: Model, rollout: Rollout, lora: Adapters | None = None) -> StartedServers:
    """The servers of a model folder, each in a process of its own; those that run already, if they can take it.

    They can take a model of the same shape: weights are sent to them before they are used. With `lora` they take such
    adapters. Called at rank 0.

    Raises:
        UserError: vLLM is not installed, or the machine has too few GPUs.
    """
    folder = local_folder(folder)
    config, tokenizer = (folder / name for name in ("config.json", "tokenizer.json"))
    shape = [file.read_text(encoding="utf-8") if file.exists() else "" for file in (config, tokenizer)]
    words = [word for word in serve_command(folder, model, rollout, HOST, 0, lora) if word != str(folder)]
    key = digest([shape, words, rollout.servers.start])
    if _running and _running[0].key == key and _running[0].keeper.poll() is None:
        return _running[0]
    close_servers()
    where = Path(Variable.RECORD.get() or tempfile.mkdtemp(prefix="mathrl-")) / "servers"
    where.mkdir(exist_ok=True)
    kept = where.resolve() / "kept.json"
    kept.unlink(missing_ok=True)  # of an earlier attempt at the run
    ports = [hold_port() for _ in range(rollout.servers.start)]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    environments = server_environments(rollout, os.environ, gpus, world_size())
    commands = []
    for number, (port, environment) in enumerate(zip(ports, environments, strict=True)):
        address: int = port.getsockname()[1]
        command = serve_command(folder, model, rollout, HOST, address, lora)
        commands.append(ServerCommand(command, environment, address, str((where / f"{number}.log").resolve())))
    _running.append(StartedServers(key, commands, ports, kept))
    multiprocessing.util.Finalize(None, close_servers, exitpriority=1)  # at the end of this process, or forked rank
    return _running[0]


def close_servers() -> None:
    """End the servers that this process has started."""
    while _running:
        _running.pop().close()


def server_environments(
    rollout: Rollout, environment: Mapping[str, str], gpus: int, ranks: int
) -> list[dict[str, str]]:
    """The environment of each server: that of this process, without what belongs to its rank, and the server's GPUs.

    The ranks have the first GPUs of the machine, one each; each server has the next `tensor_parallel`. With
    `rollout.servers.weights` ipc the servers share the ranks' GPUs.

    Raises:
        UserError: the machine has too few of the `gpus` for both, or the ranks are on several machines.
    """
    count, parallel = rollout.servers.start, rollout.vllm.tensor_parallel
    if int(environment.get("LOCAL_WORLD_SIZE", ranks)) != ranks:
        raise UserError(
            "rollout.servers.start is for one machine, but the ranks are on several: let `mathrl launch "
            "--sampler-nodes` start servers, or name them in rollout.servers.urls"
        )
    shared = {
        name: value
        for name, value in serve_environment(rollout, environment).items()
        if name not in OWN_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    if not gpus:
        return [{"OMP_NUM_THREADS": "1"} | shared for _ in range(count)]
    shares = rollout.servers.weights == "ipc"
    if shares and count * parallel > ranks:
        raise UserError(
            f"rollout.servers.weights=ipc puts the servers on the ranks' GPUs, but rollout.servers.start={count} with "
            f"rollout.vllm.tensor_parallel={parallel} needs {count * parallel}, and run.processes is {ranks}: lower "
            "rollout.servers.start, or set rollout.servers.weights to nccl"
        )
    if not shares and ranks + count * parallel > gpus:
        raise UserError(
            f"rollout.servers.start={count} with rollout.vllm.tensor_parallel={parallel} needs {count * parallel} "
            f"GPU(s) beside the {ranks} of run.processes, but this process sees {gpus}: lower rollout.servers.start or "
            "run.processes, set rollout.servers.weights to ipc, with which servers share the ranks' GPUs, or "
            "rollout.engine to vllm, which does too"
        )
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible is not None else [str(number) for number in range(gpus)]
    offset = 0 if shares else ranks
    firsts = range(offset, offset + count * parallel, parallel)
    return [shared | {"CUDA_VISIBLE_DEVICES": ",".join(names[first : first + parallel])} for first in firsts]


def hold_port() -> socket.socket:
    """A free port of loopback, which no process gets by chance while the socket is open.

    vLLM may bind its own socket to it: both have SO_REUSEADDR, and this one never listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held
