"""RL that samples from two servers ends with the same bits, whatever happens to a server, a rank, the store or a clock.

The servers are processes of their own (tests/faults/torch_server.py), kept running as a stage's own are. Without FAULTS
one run suffers everything; FAULTS=20 is how often each fault happens to a run of its own (`make faults`).
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import EXIT_KILLED
from mathrl.models.base import make_base
from mathrl.servers.protocol import state_of
from mathrl.servers.serve import StartedServers, hold_port
from mathrl.servers.server_keeper import ServerCommand
from tests.faults.test_kills import Attempt
from tests.trainers.conftest import OVERRIDES

ROOT, TIMES = Path(__file__).parents[2], int(os.environ.get("FAULTS", "0"))
YEAR = 365 * 86_400.0
STEPS = 4


@dataclass
class Samplers:
    """Two servers, and the folder by which weights reach them."""

    started: StartedServers
    store: Path

    def overrides(self) -> list[str]:
        return [
            "rollout.engine=vllm_server",
            f"rollout.servers.urls=[{','.join(self.started.urls)}]",
            f"rollout.servers.folder={self.store}",
            "rollout.servers.timeout_seconds=2",
            "rollout.servers.wait_seconds=200",
            f"rl.steps={STEPS}",
            "rl.checkpoint_every=2",
            "rl.dev.every=0",
        ]

    def signal(self, number: int, kind: signal.Signals) -> None:
        port = json.loads(self.started.file.read_text())[number]["port"]
        os.kill(int(self.store.with_name(f"{port}.pid").read_text()), kind)

    def generations(self) -> list[int]:
        """Of both, as soon as both answer: one that has no processor time for a while counts as silent."""
        deadline = time.monotonic() + 600
        while True:
            states = [state_of(url) for url in self.started.urls]
            if all(state.alive for state in states):
                return [state.generation for state in states]
            assert time.monotonic() < deadline, states
            time.sleep(0.01)


def wait_for(condition: Callable[[], Any], process: Any) -> None:
    deadline = time.monotonic() + 600
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def samplers(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Iterator[Samplers]:
    folder = tmp_path_factory.mktemp("samplers")
    make_base(load_params(ROOT / "params", overrides=OVERRIDES).model, folder / "model", seed=0)
    (folder / "store").mkdir()
    ports = [hold_port() for _ in range(2)]
    commands = []
    for number, held in enumerate(ports):
        port: int = held.getsockname()[1]
        command = [str(warm_python / "python"), "-m", "tests.faults.torch_server", str(folder / "model"), str(port)]
        environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if number == 1:  # a node whose clock is wrong, in all that follows
            environment["WRONG_CLOCK"] = str(YEAR)
        commands.append(ServerCommand(command, environment, port, str(folder / f"{number}.log")))
    started = StartedServers("key", commands, ports, folder / "kept.json")
    try:
        made = Samplers(started, folder / "store")
        made.generations()
        yield made
    finally:
        started.close()


@pytest.fixture(scope="module")
def expected(breakable: Callable[..., Any], samplers: Samplers) -> Callable[..., dict[str, dict[str, bytes]]]:
    """The outputs of uninterrupted runs, by their overrides."""
    found: dict[tuple[str, ...], dict[str, dict[str, bytes]]] = {}

    def get(*overrides: str) -> dict[str, dict[str, bytes]]:
        if overrides not in found:
            attempt = Attempt(breakable(*samplers.overrides(), *overrides), "rl")
            status, errors = attempt.run()
            assert status == 0, errors
            found[overrides] = attempt.outputs()
        return found[overrides]

    return get


@contextmanager
def gone(store: Path) -> Iterator[None]:
    """Within it nothing can be made below the folder, as at a mount point whose file system is gone."""
    away = store.with_name("away")
    store.rename(away)
    store.touch()
    try:
        yield
    finally:
        store.unlink()
        away.rename(store)


def killed(attempt: Attempt, samplers: Samplers, chance: random.Random) -> str:
    """A sampler is killed at a random moment and started again; the run goes on."""
    victim, before = chance.randrange(2), samplers.generations()
    process = attempt.start()
    after = chance.randrange(STEPS - 2)
    wait_for(lambda: attempt.broken.workspace.steps_logged("rl") >= after, process)
    time.sleep(chance.random() / 20)
    samplers.signal(victim, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    after_it = samplers.generations()
    assert after_it[victim] != before[victim] and after_it[1 - victim] == before[1 - victim]
    return str(errors)


def slow(attempt: Attempt, samplers: Samplers, chance: random.Random) -> str:
    """A sampler stands still for longer than it may, and goes on."""
    victim, before = chance.randrange(2), samplers.generations()
    process = attempt.start_held(1)
    samplers.signal(victim, signal.SIGSTOP)
    try:  # until a step was done without it
        later = attempt.broken.workspace.steps_logged("rl") + 2
        attempt.broken.let_go()
        wait_for(lambda: attempt.broken.workspace.steps_logged("rl") >= later, process)
    finally:
        samplers.signal(victim, signal.SIGCONT)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert samplers.generations() == before
    return str(errors)


def store_unreachable(attempt: Attempt, samplers: Samplers, chance: random.Random) -> str:
    """The folder that trainer and servers share is gone during a run; the stage says so, and resumes."""
    process = attempt.start_held(1)
    with gone(samplers.store):
        attempt.broken.let_go()
        _, errors = process.communicate()
    assert process.returncode == 2 and errors.count("error:") == 1, errors
    assert f"rollout.servers.folder: {samplers.store}" in errors
    status, errors = attempt.run()
    assert status == 0, errors
    return str(errors)


def everything(attempt: Attempt, samplers: Samplers, chance: random.Random) -> str:
    """One fault after the other, in one run."""
    status, errors = attempt.run("update:2", FAULTY_RANK="1", WRONG_CLOCK=str(YEAR))
    assert status == EXIT_KILLED and "rank 1 of 2 ended with signal 9" in errors, errors
    process, before = attempt.start_held(2), samplers.generations()
    samplers.signal(0, signal.SIGKILL)
    with gone(samplers.store):
        attempt.broken.let_go()
        _, errors = process.communicate()
    assert process.returncode == 2 and f"rollout.servers.folder: {samplers.store}" in errors, errors
    assert [new == old for new, old in zip(samplers.generations(), before, strict=True)] == [False, True]
    return slow(attempt, samplers, chance)


@pytest.mark.timeout(900 + 60 * TIMES)
@pytest.mark.parametrize("fault", [killed, slow, store_unreachable, everything] if TIMES else [everything])
def test_nothing_is_lost(
    breakable: Callable[..., Any], samplers: Samplers, expected: Callable[..., Any], fault: Callable[..., str]
) -> None:
    overrides = ("run.processes=2",) if fault is everything else ("run.processes=1",)
    chance = random.Random(f"{fault.__name__} {TIMES}")
    for number in range(max(1, TIMES)):
        attempt = Attempt(breakable(*samplers.overrides(), *overrides), "rl")
        errors = fault(attempt, samplers, chance)
        found, wanted = attempt.outputs(), expected(*overrides)
        differing = {
            file
            for name in wanted
            for file in wanted[name] | found[name]
            if found[name].get(file) != wanted[name].get(file)
        }
        assert not differing, f"{fault.__name__} {number}: {differing}\n{errors[-3000:]}"
        assert not attempt.state(), "the resume state is removed"
        assert not list(samplers.store.iterdir()), "weights are left behind"
        print(f"{fault.__name__} {number}: the same bits", flush=True)
