"""SIGKILL at random moments of every stage that trains or samples: the same command then ends with the same bits.

Without FAULTS each stage is killed twice: at work, and while it writes its outputs or removes its resume state.
FAULTS=20 (`make faults`) is how many kills each stage gets, no kind of moment left out.
"""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import EXIT_KILLED

KILLS = int(os.environ.get("FAULTS", "0"))
IN_A_ROW = 3  # the number of times that a run is killed and resumed
ENDS = ("export", "clean-up")
NO_KILLS = ("full", "rows full", "held")
AHEAD, TWO = ("rl.asynchronous={pace: fixed}",), ("run.processes=2",)


@dataclass(frozen=True)
class Killable:
    """A stage's command, the files and folders that it writes, and the overrides of `make faults` beside none."""

    outputs: tuple[str, ...]
    words: tuple[str, ...] = ()
    variants: tuple[tuple[str, ...], ...] = ()


def step(stage: str, *words: str, variants: tuple[tuple[str, ...], ...] = ()) -> Killable:
    folder = f"pipelines/recipes/tried/{stage}"
    return Killable((folder,), (folder, "--start", "models/sft", *words), variants)


STAGES = {
    "sft": Killable(("models/base", "models/sft", "reports/sft"), variants=(TWO,)),
    "difficulty": Killable(("data/difficulty", "reports/difficulty"), variants=(TWO,)),
    "rl": Killable(("models/rl", "reports/rl"), variants=(AHEAD, TWO)),
    "evaluate": Killable(("reports/summary.json", "reports/evaluate")),
    "sample": step(
        "sample", "--data", "data/curated/rl.jsonl", "--examples", "data/curated/sft.jsonl", variants=(TWO,)
    ),
    "dpo": step("dpo", "--data", "data/pairs.jsonl"),
    "reward_model": step("reward_model", "--data", "data/pairs.jsonl", "--replay", "data/pairs.jsonl"),
    "process_reward_model": step("process_reward_model", "--data", "data/steps.jsonl"),
}
OVERRIDES = (
    "run.processes=1", "rollout.max_sequences=16",
    "difficulty.samples=8", "difficulty.max_tokens=12",
    "evaluate.samples=2", "evaluate.ks=[1,2]", "evaluate.max_tokens=12",
    "sample.samples=3", "sample.max_tokens=12", "sample.continuations=2", "sample.labelled_per_problem=1",
    "dpo.steps=6", "dpo.pairs_per_step=4", "dpo.eval_every=2", "dpo.checkpoint_every=2",
    "reward_model.steps=6", "reward_model.batch=4", "reward_model.eval_every=2", "reward_model.checkpoint_every=2",
)  # fmt: skip


@dataclass
class Attempt:
    """A workspace in which one stage runs."""

    broken: Any
    stage: str

    def __post_init__(self) -> None:
        for output in STAGES[self.stage].outputs:
            shutil.rmtree(self.folder / output, ignore_errors=True)

    @property
    def folder(self) -> Path:
        return Path(self.broken.workspace.folder)

    def start(self, fault: str = "", **environment: str) -> Any:
        return self.broken.start(self.stage, fault, list(STAGES[self.stage].words), **environment)

    def start_held(self, steps: int) -> Any:
        return self.broken.start_held(self.stage, steps, list(STAGES[self.stage].words))

    def run(self, fault: str = "", **environment: str) -> tuple[int, str]:
        process = self.start(fault, **environment)
        _, errors = process.communicate(timeout=600)
        return process.returncode, errors

    def killed_by_the_clock(self, tenths: int) -> tuple[int, str]:
        """Kill it from outside, this many tenths of a second after its start."""
        process = self.start()
        time.sleep(tenths / 10)
        process.kill()
        _, errors = process.communicate()
        return process.returncode, errors

    def outputs(self) -> dict[str, dict[str, bytes]]:
        """The bytes of the existing outputs, by output and file."""
        found: dict[str, dict[str, bytes]] = {}
        for output in STAGES[self.stage].outputs:
            path = self.folder / output
            files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
            if files:
                found[output] = {str(file.relative_to(self.folder)): file.read_bytes() for file in files}
        return found

    def state(self) -> list[Path]:
        return [
            path for path in (self.folder / "home" / "state").glob("*") if path.is_dir() and path.name != "pass_rates"
        ]


@pytest.fixture(scope="module")
def whole(breakable: Callable[..., Any]) -> Callable[..., tuple[Attempt, dict[str, int]]]:
    """An uninterrupted run, and the number of times that each moment occurred in it."""
    runs: dict[tuple[str, tuple[str, ...]], tuple[Attempt, dict[str, int]]] = {}

    def get(stage: str, overrides: tuple[str, ...]) -> tuple[Attempt, dict[str, int]]:
        if (stage, overrides) not in runs:
            attempt = Attempt(breakable(*OVERRIDES, *overrides), stage)
            status, errors = attempt.run(OCCURRENCES=str(attempt.folder / "occurrences.json"))
            assert status == 0, errors
            runs[stage, overrides] = attempt, json.loads((attempt.folder / "occurrences.json").read_text())
        return runs[stage, overrides]

    return get


@pytest.mark.timeout(400 + 60 * KILLS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    breakable: Callable[..., Any], whole: Callable[..., Any], stage: str
) -> None:
    chance, hits = random.Random(f"{stage} {KILLS}"), Counter[str]()
    chains, kills = 0, 0
    while kills < max(KILLS, 2):
        variants = ((), *STAGES[stage].variants)
        overrides = variants[chains % len(variants)] if KILLS else AHEAD if stage == "rl" else ()
        expected, occurrences = whole(stage, overrides)
        expected_outputs = expected.outputs()
        attempt = Attempt(breakable(*OVERRIDES, *overrides, server=1), stage)
        status: int | None = None
        for number in range(IN_A_ROW if KILLS else 2):
            moments = {name: count for name, count in occurrences.items() if name not in NO_KILLS}
            moments["clock"] = 20  # from outside
            if list(attempt.folder.glob("home/state/*/checkpoints/*.json")):
                moments["rows"] = 1  # only a resumed run rewrites them
            if not KILLS:
                work = [name for name in moments if name not in (*ENDS, "clock", "record")]
                end = ENDS[[*STAGES].index(stage) % 2]
                moments = {name: moments[name] for name in (work, [end])[number]}
            fewest = min(hits[name] for name in moments)
            moment = chance.choice([name for name in sorted(moments) if hits[name] == fewest])
            fault = f"{moment}:{chance.randint(1, moments[moment])}"
            began = time.monotonic()
            tenths = int(fault.partition(":")[2])
            status, errors = attempt.killed_by_the_clock(tenths) if moment == "clock" else attempt.run(fault)
            print(f"{stage} {overrides} {fault}: {status} after {time.monotonic() - began:.1f} s", flush=True)
            assert status in (0, -signal.SIGKILL, EXIT_KILLED), f"{fault}: {errors[-3000:]}"
            hits[moment] += 1
            kills += status != 0
            for name, files in attempt.outputs().items() if not STAGES[stage].words else ():
                assert files == expected_outputs[name], f"{fault}: {name} is half there"
            if status == 0:
                break
        if status != 0:
            status, errors = attempt.run()
            assert status == 0, f"after {fault}: {errors[-3000:]}"
        outputs = attempt.outputs()
        differing = {
            name: [file for file in {**files, **outputs[name]} if files.get(file) != outputs[name].get(file)]
            for name, files in expected_outputs.items()
        }
        assert not any(differing.values()), f"after {fault}: {differing}"
        assert not attempt.state(), "the resume state is removed"
        if stage == "sft":
            summaries = [each.broken.workspace.record(stage)["summary"] for each in (attempt, expected)]
            assert summaries[0] == summaries[1] and set(summaries[0]) == {"loss", "dev/loss", "tokens"}
        chains += 1
    print(stage, dict(hits), flush=True)
    assert KILLS < 20 or not set(occurrences) - set(hits) - set(NO_KILLS)


def test_a_full_disk_is_a_one_line_error_and_loses_nothing(
    breakable: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    expected, attempt = whole("rl", AHEAD)[0], Attempt(breakable(*OVERRIDES, *AHEAD), "rl")
    status, errors = attempt.run("full:2")
    messages = [line for line in errors.splitlines() if line.startswith("error:")]
    assert status == 2 and len(messages) == 1, errors
    assert "step-00000006.safetensors: no room to write it (File too large)" in messages[0]
    (state,) = attempt.state()
    names = {"step-00000003.json", "step-00000003.safetensors"}
    assert {file.name for file in (state / "checkpoints").iterdir()} == names
    assert not (attempt.folder / "models" / "rl").exists()
    # It resumes from step 3 and is killed, or the disk is full, while the rows after that step are dropped.
    assert attempt.broken.workspace.steps_logged("rl") > 3
    status, errors = attempt.run("rows:1")
    assert status == -signal.SIGKILL, errors
    status, errors = attempt.run("rows full:1")
    assert status == 2 and "metrics.jsonl: no room to write it (File too large)" in errors, errors
    status, errors = attempt.run()
    assert status == 0 and attempt.outputs() == expected.outputs(), errors


def test_the_runs_could_differ(whole: Callable[..., Any]) -> None:
    expected = whole("rl", AHEAD)[0]
    weights, rows = expected.broken.output("rl")
    start = (expected.folder / "models" / "sft" / "model.safetensors").read_bytes()
    assert weights != start and max(row["grad_norm"] for row in rows) > 0
    pairs = whole("dpo", ())[0].outputs()["pipelines/recipes/tried/dpo"]
    assert pairs["pipelines/recipes/tried/dpo/model/model.safetensors"] != start
