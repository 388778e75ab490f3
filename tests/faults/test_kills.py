"""SIGKILL at random moments of a run: the same command again ends in the bits of a run that nobody killed.

FAULTS=20 (`make faults`) is how many kills; two without it.
"""

import os
import random
import signal
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
MOMENTS = {
    "rollout": 40, "update": 5, "optimizer": 5, "tensors": 2, "unnamed": 2, "named": 2, "metrics": 5,
    "export": 1,
}  # fmt: skip
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


@pytest.mark.timeout(300 * KILLS)
def test_killed_at_random_moments_it_ends_in_the_same_bits(
    breakable: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    chance, made, chain = random.Random(f"faults {KILLS}"), 0, 0
    while made < KILLS:
        # The fast subset is one run, with a sampler that has weights of its own.
        fast = KILLS <= IN_A_ROW
        processes, ahead = (1, AHEAD) if fast else (1 + chain % 2, AHEAD if chain % 3 == 2 else ())
        overrides = (f"run.processes={processes}", *ahead)
        expected, broken = whole(overrides), breakable(*overrides)
        moments = MOMENTS | ({"sync": 4} if ahead else {})
        status = None
        for _ in range(min(IN_A_ROW, KILLS - made)):
            moment = chance.choice(sorted(moments))
            fault = f"{moment}:{chance.randint(1, moments[moment])}"
            status, errors = broken.run("rl", fault)
            assert status in (0, -signal.SIGKILL), f"{fault}: {errors[-2000:]}"
            print(f"{overrides} {fault}: {'killed' if status else 'ended before'}")
            if status == 0:
                break
            made += 1
            assert not (broken.workspace.folder / "models" / "rl").exists(), fault
        if status != 0:
            status, errors = broken.run("rl")
            assert status == 0, errors
        assert broken.output("rl") == expected.output("rl"), fault
        rl = Path("models/rl")
        assert answers(broken.workspace.folder / rl) == answers(expected.workspace.folder / rl)
        assert not list((broken.workspace.folder / "home" / "state").glob("rl-*/")), "state is removed"
        chain += 1
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
    status, errors = broken.run("rl")
    assert status == 0, errors
    assert broken.output("rl") == whole(overrides).output("rl")
