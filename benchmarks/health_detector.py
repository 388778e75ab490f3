"""How many sabotaged runs do the health rules find, and how many false alarms do they raise?

`python benchmarks/health_detector.py`

GRPO of a model of 0.1 million parameters from one SFT start, 32 steps of 16 prompts x 8 responses: twelve kinds of
sabotage and twelve kinds of runs that are odd but healthy (`health_runs.py`), `--seeds` of each. Runs with an even seed
are those that thresholds are chosen on, the others are reported. A finished run is kept in .mathrl/health_detector and
not repeated, so the command can be stopped and started at any time; the tables are of what is finished. One process
per run, `--jobs` at a time; processor time is reported, since other jobs may run beside it.
"""

import argparse
import multiprocessing
import time
from itertools import product
from pathlib import Path

from health_runs import KINDS, start_model, train
from health_table import Run, by_kind, choose, one_by_one, read_runs, shipped, shuffled_labels, totals

from mathrl.core.files import read_json
from mathrl.rewards.cascade import exact_verdict

FOLDER = Path(__file__).parents[1] / ".mathrl/health_detector"
CHOSEN, REPORTED = 0, 1


def finish_runs(kinds: list[str], seeds: int, jobs: int) -> None:
    """The runs that are not there yet, each in a process of its own, which is forked once torch is imported."""
    missing = [
        (kind, seed) for seed, kind in product(range(seeds), kinds) if not (FOLDER / f"{kind}-{seed}.json").exists()
    ]
    if not missing:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["health_runs"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        pool.apply(start_model, (FOLDER,))
    begun = time.monotonic()
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        tasks = [pool.apply_async(train, (kind, seed, FOLDER)) for kind, seed in missing]
        for number, task in enumerate(tasks, start=1):
            file = task.get()
            seconds = read_json(file)["seconds"]
            elapsed = (time.monotonic() - begun) / 60
            print(
                f"{number} of {len(tasks)}: {file.stem}, {seconds:.1f} s of CPU, {elapsed:.0f} min in all", flush=True
            )


def report(runs: list[Run], half: int) -> None:
    choosing, reporting = ([run for run in runs if run.seed % 2 == part] for part in (CHOSEN, half))
    chosen = choose(choosing, [run.sabotaged for run in choosing])
    seconds = sum(run.seconds for run in runs)
    print(f"\n{len(runs)} runs, {seconds:.0f} s of CPU; {len(choosing)} to choose on, {len(reporting)} reported\n")
    by_kind(reporting, shipped())
    print("\nWith the defaults:\n")
    totals(reporting, shipped())
    defaults = set(shipped())
    others = ", ".join(f"{rule} {value:g}" for rule, value in chosen if (rule, value) not in defaults and value)
    kept = {rule for rule, _ in chosen}
    out = ", ".join(rule for rule, _ in shipped() if rule not in kept)
    print(f"\nWith the thresholds of the other half ({others or 'the defaults'}; left out: {out or 'none'}):\n")
    totals(reporting, chosen)
    shuffled_labels(choosing, reporting)
    one_by_one(runs)


def exact_cost(times: int = 20_000) -> float:
    """Processor time of the exact grader per response of the start model's form, in microseconds."""
    begun = time.process_time()
    for number in range(times):
        exact_verdict(f"<think>7+5=12;12-3=9;9*4={number}</think><answer>{number}</answer>", ["36"])
    return (time.process_time() - begun) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="Runs of each kind; 0: tables of the finished ones.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs at a time.")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--half", choices=["chosen", "reported"], default="reported", help="Half that the tables show.")
    options = parser.parse_args()
    finish_runs(options.kinds, options.seeds, options.jobs)
    results = [read_json(file) for file in sorted(FOLDER.glob("*-[0-9]*.json"))]
    runs = read_runs([result for result in results if result["kind"] in KINDS])
    report(runs, CHOSEN if options.half == "chosen" else REPORTED)
    print(f"\nThe exact grader takes {exact_cost():.0f} microseconds of CPU per response.")


if __name__ == "__main__":
    main()
