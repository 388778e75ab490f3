"""The workspaces of tests/trainers, with models and rows for every stage, whose stages can be killed at a moment."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.files import write_jsonl
from mathrl.core.types import read_problems, write_problems
from mathrl.models.base import make_base
from tests.trainers.conftest import make_workspace  # noqa: F401

ROOT = Path(__file__).parents[2]


@dataclass
class StageProcess:
    """A stage that `killed_stage.py --serve` forked, with the part of Popen's interface that the tests use."""

    pid: int
    log: Path
    returncode: int | None = None

    def poll(self) -> int | None:
        status = self.log.with_suffix(".status")
        if self.returncode is None and status.exists():
            self.returncode = int(status.read_text())
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[None, str]:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(self.log.read_text()[-2000:])
            time.sleep(0.01)
        return None, self.log.read_text()


@dataclass
class ForkServer:
    """A process that has imported torch and forks one process per stage run; started by the first of them."""

    folder: Path
    python: str
    variables: dict[str, str]
    process: "subprocess.Popen[str] | None" = None
    numbers: Iterator[int] = field(default_factory=count)

    def start(self, folder: Path, environment: dict[str, str], words: list[str]) -> StageProcess:
        if self.process is None:
            self.process = subprocess.Popen(
                [self.python, "-m", "tests.faults.killed_stage", "--serve"],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | self.variables,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self.process.stdin and self.process.stdout
        log = self.folder / f"{next(self.numbers)}.log"
        request = {"folder": str(folder), "environment": environment, "words": words, "log": str(log)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return StageProcess(int(self.process.stdout.readline()), log)

    def close(self) -> None:
        if self.process is not None and self.process.stdin:
            self.process.stdin.close()
            self.process.wait(300)


@dataclass
class Breakable:
    """A workspace; `run` ends with the stage's status and what it wrote."""

    workspace: Any
    server: ForkServer

    def start(self, stage: str, fault: str = "", words: list[str] | None = None, **environment: str) -> StageProcess:
        outside = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        outside |= {
            "MATHRL_HOME": str(self.workspace.folder / "home"),
            "MATHRL_MIRROR": "none",
            "PYTHONPATH": str(ROOT),
            "STAGE": stage,
            "FAULT": fault,
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        environment = {key: value for key, value in outside.items() if value}
        return self.server.start(self.workspace.folder, environment, words or [])

    def start_held(self, stage: str, steps: int, words: list[str] | None = None, **environment: str) -> StageProcess:
        """Start the stage; it stands still after so many steps, until `let_go`."""
        process = self.start(stage, f"held:{steps}", words, **environment)
        deadline = time.monotonic() + 600
        while not self.held.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process

    @property
    def held(self) -> Path:
        return Path(self.workspace.folder / "held")

    def let_go(self) -> None:
        self.held.unlink()

    def start_until(self, stage: str, steps: int) -> StageProcess:
        """Start the stage and wait until `steps` steps are logged."""
        process = self.start(stage)
        deadline = time.monotonic() + 600
        while self.workspace.steps_logged(stage) < steps:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process

    def run(
        self, stage: str, fault: str = "", words: list[str] | None = None, **environment: str
    ) -> tuple[int | None, str]:
        process = self.start(stage, fault, words, **environment)
        _, errors = process.communicate(timeout=900)
        return process.returncode, errors

    def output(self, stage: str) -> Any:
        return self.workspace.output(stage)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Iterator[list[ForkServer]]:
    """Two, whose sets of strings have other orders: of the first, those of the session's warm Python."""
    folder = tmp_path_factory.mktemp("runs")
    servers = [
        ForkServer(folder / "0", str(warm_python / "python"), {}),
        ForkServer(folder / "1", sys.executable, {"PYTHONHASHSEED": "2"}),
    ]
    for server in servers:
        server.folder.mkdir()
    yield servers
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def breakable(
    make_workspace: Callable[..., Any],  # noqa: F811
    servers: list[ForkServer],
) -> Iterator[Callable[..., Breakable]]:
    def make(*overrides: str, server: int = 0) -> Breakable:
        workspace = make_workspace(*overrides)
        params, folder = load_params(workspace.folder / "params"), workspace.folder
        for seed, name in enumerate(("sft", "base", "rl")):
            make_base(params.model, folder / "models" / name, seed)
        problems = list(read_problems(folder / "data/curated/rl.jsonl"))
        write_problems(folder / "data/curated/test.jsonl", [p.with_(id=f"{p.id}-test", split="test") for p in problems])
        shared = [{"problem_id": p.id, "problem": p.to_row()} for p in problems]
        sides = {"chosen": "1;2", "rejected": "3", "chosen_ended": True, "rejected_ended": False}
        labels = {"response": "1;2", "ended": True, "correct": False, "soft": [1.0, 0.25], "hard": [1.0, 1.0]}
        write_jsonl(folder / "data/pairs.jsonl", [row | sides for row in shared])
        write_jsonl(folder / "data/steps.jsonl", [row | labels for row in shared])
        return Breakable(workspace, servers[server])

    yield make
