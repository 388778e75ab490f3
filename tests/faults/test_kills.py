"""SIGKILL at random moments of a run: the same command again ends in the bits of a run that nobody killed.

FAULTS=20 (`make faults`) is how many kills, no kind of moment left out; two without it.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine

KILLS = int(os.environ.get("FAULTS", "2"))
IN_A_ROW = 3  # a run is killed, goes on, is killed, …
# A moment, and in which of its occurrences; later ones may not come, since a run goes on from a checkpoint.
# "clock": from outside, so many tenths of a second after the first step that is logged.
MOMENTS = {
    "rollout": 40, "update": 5, "optimizer": 5, "tensors": 2, "unnamed": 2, "named": 2, "metrics": 5,
    "export": 1, "rows": 1, "state": 1, "clock": 20,
}  # fmt: skip
AFTER_THE_MODEL = ("clock", "state")  # these may come when it is exported
AHEAD = ("rl.rollout_ahead=1",)


@pytest.fixture(scope="module")
def whole(breakable: Callable[..., Any]) -> Callable[[tuple[str, ...]], Any]:
    made: dict[tuple[str, ...], Any] = {}

    def get(overrides: tuple[str, ...]) -> Any:
        if overrides not in made:
            made[overrides] = breakable(*overrides)
            status, errors = made[overrides].run("rl")
            assert status == 0, errors
        return made[overrides]

    return get


def answers(folder: Path) -> list[tuple[int, ...]]:
    """Greedy responses to some prompts that were in no training."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(folder)
    engine = TorchEngine(load_model(folder, Model(), "cpu"), tokenizer, Rollout())
    prompts = [tokenizer.encode(text) for text in ("a=7;b=a+5;b?", "x=91;y=x-3;y?", "12*3=")]
    return [row[0].tokens for row in engine.generate(prompts, Sampling(1, 0.0, 12), 0)]


def killed_from_outside(broken: Any, fault: str) -> tuple[int, str]:
    process = broken.start("rl")
    try:
        before = broken.workspace.steps_logged("rl")
        while process.poll() is None and broken.workspace.steps_logged("rl") == before:
            time.sleep(0.01)
        time.sleep(int(fault.partition(":")[2]) / 10)
    finally:
        process.kill()
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def test_a_signal_in_a_long_step_leaves_a_checkpoint_within_ten_seconds(
    breakable: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    # With two processes beside `make faults`: they take turns slowly where cores are busy.
    overrides = (f"run.processes={1 if KILLS <= IN_A_ROW else 2}", "rl.checkpoint_every=100")
    expected, broken = whole(overrides), breakable(*overrides)
    process = broken.start("rl", "slow:40")
    folder = broken.workspace.folder
    while not (folder / "asleep").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    done = broken.workspace.steps_logged("rl")
    assert 1 <= done < len(expected.output("rl")[1])
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75 and time.monotonic() - began < 10, errors
    (state,) = (folder / "home" / "state").glob("rl-*/checkpoints")
    assert {file.name for file in state.iterdir()} == {f"step-{done:08d}.json", f"step-{done:08d}.safetensors"}, (
        "of the step before, although none was due"
    )
    status, errors = broken.run("rl")
    assert status == 0 and broken.output("rl") == expected.output("rl"), errors


@pytest.mark.timeout(300 * KILLS)
def test_killed_at_random_moments_it_ends_in_the_same_bits(
    breakable: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    chance, made, chain = random.Random(f"faults {KILLS}"), 0, 0
    hit: Counter[str] = Counter()
    while made < KILLS:
        # The fast subset is one run, with a sampler that has weights of its own.
        fast = KILLS <= IN_A_ROW
        processes, ahead = (1, AHEAD) if fast else (1 + chain % 2, AHEAD if chain % 3 == 2 else ())
        overrides = (f"run.processes={processes}", *ahead)
        expected, broken = whole(overrides), breakable(*overrides)
        status, through = None, False
        for _ in range(min(IN_A_ROW, KILLS - made)):
            moments = MOMENTS | ({"sync": 4} if ahead else {})
            if not list(broken.workspace.folder.glob("home/state/rl-*/checkpoints/*.json")):
                del moments["rows"]  # it would keep none
            fewest = min(hit[name] for name in moments)  # no kind is left out
            moment = chance.choice([name for name in sorted(moments) if hit[name] == fewest])
            fault = f"{moment}:{chance.randint(1, moments[moment])}"
            status, errors = killed_from_outside(broken, fault) if moment == "clock" else broken.run("rl", fault)
            assert status in (0, -signal.SIGKILL), f"{fault}: {errors[-2000:]}"
            print(f"{overrides} {fault}: {'killed' if status else 'ended before'}")
            if status == 0:
                break
            made, hit[moment] = made + 1, hit[moment] + 1
            through = through or moment in AFTER_THE_MODEL
            assert through or not (broken.workspace.folder / "models" / "rl").exists(), fault
        if status != 0:
            status, errors = broken.run("rl")
            assert status == 0, errors
        assert broken.output("rl") == expected.output("rl"), fault
        rl = Path("models/rl")
        assert answers(broken.workspace.folder / rl) == answers(expected.workspace.folder / rl)
        assert not list((broken.workspace.folder / "home" / "state").glob("rl-*/")), "state is removed"
        chain += 1
    print(dict(hit))
    assert KILLS < 20 or min(hit[name] for name in (*MOMENTS, "sync")) >= 1
    weights, rows = expected.output("rl")
    # The runs have something to differ in.
    start = (expected.workspace.folder / "models" / "sft" / "model.safetensors").read_bytes()
    assert weights != start and max(row["grad_norm"] for row in rows) > 0


def test_a_full_disk_is_one_sentence_and_costs_nothing(
    breakable: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    overrides = ("run.processes=1", *AHEAD)
    broken = breakable(*overrides)
    status, errors = broken.run("rl", "full:2")
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert status == 2 and len(said) == 1, errors
    assert "step-00000006.safetensors: no room to write it (File too large)" in said[0]
    (state,) = (broken.workspace.folder / "home" / "state").glob("rl-*/checkpoints")
    assert {file.name for file in state.iterdir()} == {"step-00000003.json", "step-00000003.safetensors"}
    assert not (broken.workspace.folder / "models" / "rl").exists()
    # It goes on from step 3, and is killed, or finds no room, while the rows after it are dropped.
    assert broken.workspace.steps_logged("rl") > 3
    status, errors = broken.run("rl", "rows:1")
    assert status == -signal.SIGKILL, errors
    status, errors = broken.run("rl", "rows full:1")
    assert status == 2 and "metrics.jsonl: no room to write it (File too large)" in errors, errors
    status, errors = broken.run("rl")
    assert status == 0, errors
    assert broken.output("rl") == whole(overrides).output("rl")
