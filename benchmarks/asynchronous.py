"""Wall time to a dev accuracy, asynchronous against colocated, on two cores: `python benchmarks/asynchronous.py`.

    make demo                                                # once: data and models/sft, from which every run starts
    python benchmarks/asynchronous.py [--seeds 0 1 2 3 4] [--arms colocated staleness-1] [--set rl.steps=60]
    python benchmarks/asynchronous.py --until-level --seeds 0 1 2 3 4 --arms colocated continuous-1    # 6 minutes

Colocated, two processes sample a step, then train on it (the demo's own way on two cores). Asynchronous, one process
has a thread that samples and a thread that trains, with one torch thread each. `ranks-1` is continuous-1 with two such
processes, `dynamic-1` is continuous-1 with uniform groups replaced. Everything else is equal: the demo's RL stage, dev
evaluations every five steps. With --until-level a run ends at the level, and there is no forecast. The wall time runs
from the first step's beginning to the first evaluation at the level, between two evaluations in proportion; starting
Python and loading models are not in it.

A finished run is kept in .mathrl/asynchronous and not repeated, so the command can be stopped and started at any time.
An unfinished run begins again, since its clock has a gap. Seeds come first, so that the arms see the same hours. Wall
times need a quiet machine: each run's largest load average is kept, and arms with more than `cores` + 1 are marked (*).

The forecast is that of `mathrl plan --simulate` for two "GPUs" of one core each, from the decoding speed of models/sft
in one thread (measured once) and the update's speed in the finished colocated runs. It does not know that two threads
share an interpreter.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mathrl.compose import load_params, write_params
from mathrl.core.files import read_json, write_json, write_text
from mathrl.core.metrics import complete_rows
from mathrl.core.types import read_problems
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params import Params
from mathrl.planning.simulate import MODES, ResponseLengths, SamplingEngine, Simulation, Sync, Trainer, simulate
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mathrl/asynchronous"
INPUTS = ("data/mixture", "data/curated", "data/difficulty", "models/sft")
LEVEL, CORES = 0.85, 2
APART = ("run.processes=1",)
CONTINUOUS = "rl.asynchronous={{staleness: {}, pace: continuous}}"
ARMS: dict[str, tuple[str, ...]] = {
    "colocated": (f"run.processes={CORES}",),
    "fixed-1": (*APART, "rl.asynchronous={staleness: 1, pace: fixed}"),
    **{f"staleness-{bound}": (*APART, f"rl.asynchronous.staleness={bound}") for bound in (1, 2, 4)},
    **{f"continuous-{bound}": (*APART, CONTINUOUS.format(bound)) for bound in (1, 2)},
    "ranks-1": (f"run.processes={CORES}", CONTINUOUS.format(1)),
    "dynamic-1": (*APART, CONTINUOUS.format(1), "rl.dynamic_sampling={rounds: 2}"),
}
FIGURES = ("rollout/lag", "rollout/partial_share", "rollout/dropped_groups", "time/rollout_wait",
           "time/sync_wait", "time/sampler_wait")  # fmt: skip
SECONDS_BETWEEN_LOOKS = 1.0


def params_of(arm: str, seed: int, more: list[str]) -> Params:
    overrides = ["rl.dev.every=5", f"run.seed={seed}", "run.device=cpu", *ARMS[arm], *more]
    return load_params(ROOT / "params", overrides=overrides)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows that the run in this workspace has logged so far."""
    files = list(folder.glob("home/records/rl-*/metrics.jsonl"))
    return complete_rows(files[0]) if files else []


def one(arm: str, seed: int, more: list[str], until_level: bool) -> dict[str, Any]:
    """Run the stage in a workspace of its own; its figures. `until_level`: end it at the first evaluation there."""
    folder = FOLDER / f"{arm}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    for file in (ROOT / "params").glob("*.yaml"):
        write_text(folder / "params" / file.name, file.read_text(encoding="utf-8"))
    write_params(load_params(ROOT / "params"), params_of(arm, seed, more), folder / "params")
    for path in INPUTS:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(ROOT / path)
    environment = os.environ | {"MATHRL_HOME": str(folder / "home"), "MATHRL_MIRROR": "none", "PYTHONPATH": str(ROOT)}
    load, ended = 0.0, False
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mathrl.stages.rl"], cwd=folder, env=environment, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                load = max(load, os.getloadavg()[0])
                if until_level and any(row.get("dev/accuracy", 0.0) >= LEVEL for row in rows_of(folder)):
                    process.terminate()
                    process.wait()
                    ended = True
        finally:
            process.kill()
    if process.returncode and not ended:
        raise SystemExit(f"error: {arm} with seed {seed} ended with status {process.returncode}: see {log.name}")
    rows = rows_of(folder)
    means: dict[str, Any] = {name: statistics.mean(row[name] for row in rows) for name in FIGURES if name in rows[0]}
    # A row is written at the end of its step: the first step's own time stands in for its beginning.
    start = rows[0]["at"] - rows[0]["time/step"]
    evaluations = [(row["at"] - start, row["dev/accuracy"]) for row in rows if "dev/accuracy" in row]
    tokens = [row["response_length"] for row in rows]
    return {
        "seconds": seconds_to(evaluations, LEVEL),
        "evaluations": evaluations,
        "step_seconds": statistics.mean(after["at"] - before["at"] for before, after in pairwise(rows)),
        "update_seconds": statistics.mean(row["time/update"] for row in rows),
        "response_length": statistics.mean(tokens),
        "load": load,
        "overrides": more,
        **means,
        "rollout/lag_max": max(row.get("rollout/lag_max", 0.0) for row in rows),
    }


def seconds_to(evaluations: list[tuple[float, float]], level: float) -> float | None:
    """Seconds until the accuracy first reached the level, between two evaluations in proportion.

    >>> seconds_to([(10.0, 0.5), (20.0, 0.9)], 0.7)
    15.0
    """
    for (start, low), (end, high) in pairwise([(0.0, 0.0), *evaluations]):
        if high >= level:
            return end if not start else start + (level - low) / (high - low) * (end - start)
    return None


def decoding(params: Params) -> dict[str, float]:
    """Milliseconds of a decoding step of one thread, fitted to two batch sizes, and how long responses are."""
    file = FOLDER / "decoding.json"
    if file.exists():
        return dict(read_json(file))
    torch.set_num_threads(1)
    folder = ROOT / "models/sft"
    tokenizer = load_tokenizer(folder, params.model)
    engine = TorchEngine(load_model(folder, params.model, "cpu"), tokenizer, params.rollout)
    renderer = Sampler(engine, tokenizer, params.prompt)
    problems = read_problems(ROOT / "data/mixture/train.jsonl")[:32]
    prompts = [tokens for tokens in map(renderer.prompt_tokens, problems) if tokens is not None]
    lengths = [
        len(completion.tokens)
        for group in engine.generate(prompts, Sampling(16, params.rl.temperature, params.rl.max_tokens), 0)
        for completion in group
    ]
    engine.ends = [-1]  # every response is of full length, so that the batch keeps its size
    seconds = {}
    for samples in (2, 8):
        start = time.perf_counter()
        engine.generate(prompts, Sampling(samples, params.rl.temperature, params.rl.max_tokens), 0)
        seconds[samples * len(prompts)] = (time.perf_counter() - start) / params.rl.max_tokens
    (few, low), (many, high) = seconds.items()
    slope = (high - low) / (many - few)
    logs = np.log(np.array(lengths))
    found = {
        "step_ms": 1e3 * max(1e-6, low - few * slope),
        "sequence_ms": 1e3 * slope,
        "mean": float(np.mean(lengths)),
        "spread": float(np.std(logs)),
        "prompt": float(np.mean([len(prompt) for prompt in prompts])),
        "load": os.getloadavg()[0],
    }
    write_json(file, found)
    return found


def forecasts(params: Params, results: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Seconds per step that the simulator expects of each arm."""
    speed, rl = decoding(params), params.rl
    responses = rl.prompts_per_step * rl.group_size
    update = statistics.mean(result["update_seconds"] for result in results["colocated"])
    length = statistics.mean(result["response_length"] for result in results["colocated"])
    tokens = responses * (length + speed["prompt"])
    found = {}
    for arm in results:
        setup = Simulation(
            nodes=1,
            gpus_per_node=CORES,
            responses=responses,
            lengths=ResponseLengths(
                mean=length, spread=speed["spread"], limit=rl.max_tokens, prompt=round(speed["prompt"])
            ),
            sampler=SamplingEngine(step_ms=speed["step_ms"], sequence_ms=speed["sequence_ms"], concurrency=responses),
            trainer=Trainer(tokens_per_second=tokens / (update * CORES)),
            sync=Sync(weights_gb=0, fixed_seconds=0),
            staleness=float(arm.rpartition("-")[2]) if "-" in arm else 0.0,
        )
        mode = MODES[0] if arm == "colocated" else MODES[1] if arm.startswith("fixed") else MODES[2]
        found[arm] = simulate(setup, mode).step_seconds
    return found


def mean_of(results: list[dict[str, Any]], name: str, digits: int = 2) -> str:
    values = [result[name] for result in results if result.get(name) is not None]
    return f"{statistics.mean(values):.{digits}f}" if values else "-"


def table(params: Params, with_forecast: bool) -> None:
    results = {
        arm: found
        for arm in ARMS
        if (found := [dict(read_json(file)) for file in sorted(FOLDER.glob(f"{arm}-[0-9]*.json"))])
    }
    expected = forecasts(params, results) if with_forecast and "colocated" in results else {}
    print(
        f"| arm | seeds | s to {LEVEL} (range) | s per step | forecast | lag, largest | partial | dropped per step | "
        "trainer waits, s | sampler waits, s | largest load |"
    )
    print("|---" * 11 + "|")
    for arm, runs in results.items():
        reached = [run["seconds"] for run in runs if run["seconds"] is not None]
        cell = f"{statistics.mean(reached):.0f} ({min(reached):.0f} to {max(reached):.0f})" if reached else "never"
        cell += f", {len(reached)} of {len(runs)}" if 0 < len(reached) < len(runs) else ""
        busy = " (*)" if max(run["load"] for run in runs) > CORES + 1 else ""
        waits = [sum(run.get(name, 0.0) for name in ("time/rollout_wait", "time/sync_wait")) for run in runs]
        forecast = f"{expected[arm]:.2f}" if arm in expected else "-"
        print(
            f"| {arm} | {len(runs)} | {cell} | {mean_of(runs, 'step_seconds')} | {forecast} | "
            f"{mean_of(runs, 'rollout/lag')}, {max(run['rollout/lag_max'] for run in runs):.0f} | "
            f"{mean_of(runs, 'rollout/partial_share')} | {mean_of(runs, 'rollout/dropped_groups')} | "
            f"{statistics.mean(waits):.2f} | {mean_of(runs, 'time/sampler_wait')} | "
            f"{max(run['load'] for run in runs):.1f}{busy} |"
        )
    if any(run["load"] > CORES + 1 for runs in results.values() for run in runs):
        print("\n(*) the machine was not quiet: do not compare these wall times.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="section.key=value")
    parser.add_argument("--until-level", action="store_true", help="end each run at the level; no forecast")
    options = parser.parse_args()
    for path in INPUTS:
        if not (ROOT / path).exists():
            raise SystemExit(f"error: {path} is missing: run `make demo` first, from which every run starts")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for arm in options.arms:
            file = FOLDER / f"{arm}-{seed}.json"
            if not file.exists():
                write_json(file, one(arm, seed, options.overrides, options.until_level))
                print(file.stem, json.dumps(read_json(file)), flush=True)
            elif read_json(file)["overrides"] != options.overrides:
                raise SystemExit(
                    f"error: {file} was run with other --set: remove .mathrl/asynchronous, or use the same"
                )
    table(params_of("colocated", 0, options.overrides), with_forecast=not options.until_level)


if __name__ == "__main__":
    main()
