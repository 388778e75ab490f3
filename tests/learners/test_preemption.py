"""When a run writes a checkpoint, and when a signal ends it: at the step's end, or in seconds."""

import copy
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mathrl.learners.distributed import Ranks
from mathrl.learners.preemption import GRACE_SECONDS, SAVE_SECONDS, Stopped, StopRequest
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.packing import Group
from mathrl.params.optimizer import AdamW
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Dpo, Rl, Sft
from mathrl.params.training import Training
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers import rl as rl_module
from mathrl.trainers import supervised as supervised_module
from mathrl.trainers.preference import train_dpo
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import Item

FIVE: dict[str, Any] = {"steps": 5, "optimizer": AdamW(lr=5e-3, warmup_steps=2), "checkpoint_every": 100}
RL = Rl(prompts_per_step=4, group_size=4, max_tokens=8, dev={"every": 1, "samples": 1}, **FIVE)
Run = Callable[[Path, Training], list[torch.Tensor]]


def demonstrations() -> list[Group]:
    rows = torch.randint(3, 20, (24, 8), generator=torch.Generator().manual_seed(1)).tolist()
    return [Group(tuple(row[:4]), (tuple(row[4:]),)) for row in rows]


def runs(small: Any) -> dict[str, Run]:
    def rl(state: Path, training: Training) -> Any:
        model, sampler = small.policy()
        train_rl(model, sampler, small.PROBLEMS, small.PROBLEMS[:3], small.CountsOnes(), RL,
                 small.training_run(state, training=training))  # fmt: skip
        return model

    def ahead(state: Path, training: Training) -> Any:
        model, _ = small.policy()
        engine = CopyEngine(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1e-4)
        params = small.changed(RL, asynchronous={"pace": "fixed"})
        train_rl(model, Sampler(engine, small.TOKENIZER, Prompt()), small.PROBLEMS, (), small.CountsOnes(), params,
                 small.training_run(state, training=training))  # fmt: skip
        return model

    def sft(state: Path, training: Training) -> Any:
        model, rows = small.policy()[0], demonstrations()
        params = Sft(tokens_per_step=60, eval_every=1, **FIVE)
        train_sft(model, rows[3:], rows[:3], params, small.training_run(state, training=training))
        return model

    def dpo(state: Path, training: Training) -> Any:
        model, rows = small.policy()[0], demonstrations()
        pairs = [
            Item(Group(one.prompt, (one.responses[0], other.responses[0])))
            for one, other in zip(rows[:12], rows[12:], strict=True)
        ]
        params = Dpo(pairs_per_step=4, eval_every=1, **FIVE)
        train_dpo(model, pairs[3:], pairs[:3], params, small.training_run(state, training=training))
        return model

    def weights(run: Callable[[Path, Training], Any]) -> Run:
        return lambda state, training: list(run(state, training).parameters())

    return {"rl": weights(rl), "ahead": weights(ahead), "sft": weights(sft), "dpo": weights(dpo)}


@pytest.fixture(scope="module")
def whole(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[list[torch.Tensor], Any]]:
    """The weights and metrics of an uninterrupted run of a name, which is made once."""

    @functools.cache
    def made(name: str) -> tuple[list[torch.Tensor], Any]:
        state = tmp_path_factory.mktemp(name)
        return runs(small)[name](state, Training()), small.without_timings(state / "metrics.jsonl")

    return made


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A signal to this process leaves it alone when its run is over."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(StopRequest, "_leave", lambda *_: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(function: Callable[..., Any], time: int) -> Callable[..., Any]:
    """Meanwhile, at its n-th call, a SIGTERM comes."""
    calls = 0

    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == time:
            os.kill(os.getpid(), signal.SIGTERM)
        return function(*given, **named)

    return wrapped


@pytest.mark.parametrize(
    ("name", "moment"), [("rl", "rollout"), ("rl", "dev"), ("ahead", "update"), ("sft", "update"), ("dpo", "dev")]
)
def test_a_signal_at_any_moment_of_a_step_ends_the_run_after_it(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, no_hurry: None, name: str, moment: str
) -> None:
    run, (weights, expected) = runs(small)[name], whole(name)
    owner, function = {
        "rollout": (small.CountsOnes, "score"),
        "update": (TorchLearner, "update"),
        "rl dev": (rl_module, "dev_figures"),
        "dpo dev": (supervised_module, "evaluate"),
    }[f"{name} dev" if moment == "dev" else moment]
    third = 5 if moment == "rollout" else 3  # every second call is of the dev problems
    with monkeypatch.context() as patched:
        patched.setattr(owner, function, signalled(getattr(owner, function), third))
        with pytest.raises(Stopped) as stopped:
            run(tmp_path / "cut", Training())
    assert stopped.value.code == 75
    rows = small.without_timings(tmp_path / "cut" / "metrics.jsonl")
    assert len(rows) == 3, "the step of the signal is the last"
    resumed = run(tmp_path / "cut", Training())
    assert all(torch.equal(ours, other) for ours, other in zip(resumed, weights, strict=True))
    assert small.without_timings(tmp_path / "cut" / "metrics.jsonl") == expected


def test_a_checkpoint_is_late_so_many_minutes_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    class Summing(Ranks):
        def sum_(self, tensor: torch.Tensor) -> None:
            assert tensor.dtype == torch.float32 and tensor.shape == (2,), "what ranks can add"
            tensor += torch.tensor(others)

    others = [0.0, 0.0]
    clock = 1000.0
    monkeypatch.setattr("mathrl.learners.preemption.time", SimpleNamespace(monotonic=lambda: clock))
    stop = StopRequest(Summing(torch.device("cpu"), Training(checkpoint_minutes=2)))
    saved = []
    for seconds, due in ((100, False), (19, False), (1, False), (1, False), (60, True), (100, False), (30, False)):
        clock += seconds
        saved.append(stop.boundary(due))
    late = [False, False, True, False, True, False, True]
    assert saved == [(save, False) for save in late]
    others = [1.0, 0.0]
    assert stop.boundary(False) == (True, True), "another rank has a signal"
    others = [0.0, 1.0]
    assert stop.boundary(False) == (True, False), "the first rank's last checkpoint is old"
    never = StopRequest(Ranks(torch.device("cpu"), Training(checkpoint_minutes=None)))
    clock += 1e6
    assert never.boundary(False) == (False, False)
    never.requested = True
    assert never.boundary(False) == (True, True)


def test_who_leaves_saves_what_is_held_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(os, "_exit", happened.append)
    stop = StopRequest(Ranks(torch.device("cpu")))

    def left(at_once: bool) -> list[Any]:
        happened.clear()
        stop._leave(at_once)
        return list(happened)

    assert stop._save is None and left(True) == left(False) == [], "nobody has asked"
    stop.requested = True
    assert left(False) == [] and left(True) == [75], "at first it waits for a boundary"
    stop.hold(lambda: happened.append("saved"))
    assert left(False) == left(True) == ["saved", 75]
    stop.release()
    assert left(False) == [] and left(True) == [75] and capsys.readouterr().err == ""

    stop.hold(lambda: happened.append("saved"))
    with stop:
        pass
    assert left(True) == [], "the run is over"
    stop.requested = True
    assert left(False) == [], "and nothing of it is saved"

    for kind in (OSError, RuntimeError):  # a full disk; a rank that is gone

        def fails(kind: type[Exception] = kind) -> None:
            raise kind("no space left")

        stop.hold(fails)
        assert left(False) == [75] and capsys.readouterr().err == "no checkpoint could be written: no space left\n"


def test_a_signal_is_taken_once_and_the_handlers_come_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timers: list[Any] = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, call: Any, given: list[bool]) -> None:
            timers.append((seconds, call.__name__, given, self))

        def start(self) -> None:
            assert self.daemon, "the process does not wait for it"

    monkeypatch.setattr("mathrl.learners.preemption.threading.Timer", Timer)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with StopRequest(Ranks(torch.device("cpu"))) as stop:
        assert not stop.requested and [signal.getsignal(number) for number in numbers] == [stop._receive] * 2
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
    assert [each[:3] for each in timers] == [(4.0, "_leave", [False]), (8.0, "_leave", [True])]
    assert capsys.readouterr().err == "SIGTERM: stopping at the next step boundary\n"
    assert not stop.requested and [signal.getsignal(number) for number in numbers] == before
    for error, after in ((SystemExit(1), before), (Stopped(), [stop._receive] * 2)):
        with pytest.raises(SystemExit), stop:
            raise error
        assert [signal.getsignal(number) for number in numbers] == after, "until a stopped process has ended"
    stop.__exit__(None, None, None)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("name", ["rl", "sft"])
def test_a_checkpoint_comes_by_the_clock_too_and_changes_no_bit(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, name: str
) -> None:
    run, writes, (weights, expected) = runs(small)[name], 0, whole(name)
    write = TorchLearner.write

    def counted(self: Any, folder: Path) -> None:
        nonlocal writes
        writes += 1
        write(self, folder)

    monkeypatch.setattr(TorchLearner, "write", counted)
    for minutes, count in ((None, 1), (1e-9, 5)):
        writes = 0
        state = tmp_path / str(minutes)
        found = run(state, Training(checkpoint_minutes=minutes))
        assert writes == count, f"{minutes} minutes"
        assert small.without_timings(state / "metrics.jsonl") == expected
        assert all(torch.equal(ours, other) for ours, other in zip(found, weights, strict=True))


# Two forks without a step boundary, of which one holds a step: how each ends after a SIGTERM, and after how long.
WITHOUT_A_BOUNDARY = """
import json, os, signal, time, torch
from pathlib import Path
from mathrl.learners import preemption
from mathrl.learners.distributed import Ranks
from mathrl.learners.preemption import StopRequest

def wait(held):
    if held:
        preemption.GRACE_SECONDS = 600.0  # a held run need not wait for them
    stop = StopRequest(Ranks(torch.device("cpu"))).__enter__()
    stop.hold(lambda: Path(f"saved {held}").touch())
    if not held:
        stop.release()
    os.write(writing, b"1")
    time.sleep(600)

reading, writing = os.pipe()
waiting = {}
for held in (True, False):
    waiting[held] = os.fork()
    if not waiting[held]:
        wait(held)
    os.read(reading, 1)
began, ends = time.monotonic(), {}
for process in waiting.values():
    os.kill(process, signal.SIGTERM)
for held, process in waiting.items():
    ends[held] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), time.monotonic() - began
print(json.dumps([ends[True], ends[False]]))
"""


def test_a_signal_without_a_step_boundary_ends_the_process_in_time(tmp_path: Path) -> None:
    assert SAVE_SECONDS < GRACE_SECONDS < 10, "the seconds that a cluster gives"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_BOUNDARY],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        timeout=200,
    )
    held, free = json.loads(done.stdout)
    assert held[0] == free[0] == 75 and held[1] >= SAVE_SECONDS and free[1] >= GRACE_SECONDS
    assert [file.name for file in tmp_path.iterdir()] == ["saved True"]
