"""Is the winner better than the present parameters? Both run anew on fresh seeds, and on test for once."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.hashing import digest, digest_path
from mathrl.evaluation.compare import compare_sides
from mathrl.evaluation.responses import common_problems, read_run
from mathrl.sweeps.space import overrides, trial_params
from mathrl.sweeps.study import Opened, best
from mathrl.sweeps.trial import Failed, Run, clear, execute, finished, rl_run

FRESH = 1000  # the first fresh seed lies so far above run.seed: no trial has had it
NAMES = ("present parameters", "winner")


@dataclass(frozen=True)
class _Side:
    number: int
    values: dict[str, Any]


def compare(opened: Opened, stopping: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Train both on the fresh seeds, evaluate on test, test the difference; comparison.json in the folder.

    What is there from an earlier call is not run again, unless `evaluate` or the test problems have changed.

    Raises:
        UserError: no complete trial, or a run that failed.
    """
    winner = best(opened.study.get_trials(deepcopy=False))
    if winner is None:
        raise UserError(f"study {opened.sweep.study} has no complete trial yet: mathrl sweep run")
    if winner.number == 0:
        out: dict[str, Any] = {"winner": 0, "verdict": "no trial was better on dev than the present parameters"}
        write_json(opened.folder / "comparison.json", out)
        return out
    sides = (_Side(0, dict(opened.present)), _Side(winner.number, winner.user_attrs["values"]))
    first = trial_params(opened.sweep, sides[0].values).run.seed + FRESH
    seeds = range(first, first + opened.sweep.fresh_seeds)
    with ThreadPoolExecutor(opened.sweep.workers) as pool:
        jobs = [[pool.submit(_one, opened, side, seed, stopping) for seed in seeds] for side in sides]
        try:
            files = [[job.result() for job in side] for side in jobs]
        except Failed as failed:
            pool.shutdown(cancel_futures=True)
            raise UserError(f"the comparison of study {opened.sweep.study} stopped: {failed}") from None
    params = trial_params(opened.sweep, sides[0].values)
    runs = common_problems([read_run(f, None, "test") for each in files for f in each], allow_missing=False)
    half = len(files[0])
    found = compare_sides(runs[:half], runs[half:], NAMES, "pass_at_1", params.evaluate, params.run.seed)
    test = found["comparison"]
    verdict = test["verdict"] if test["shown"] else f"a tie: {test['verdict']}"
    out = {"winner": winner.number, "seeds": list(seeds), "verdict": verdict, **found}
    write_json(opened.folder / "comparison.json", out)
    return out


def _one(opened: Opened, side: _Side, seed: int, stopping: Callable[[], bool]) -> Path:
    """The responses on test of one side's run with one fresh seed."""
    train = rl_run(opened, f"t{side.number:04d}-fresh-s{seed}", side.values, seed)
    words = _evaluation(opened, side, seed, f"{train.out}/model")
    test = Run(opened.folder, f"t{side.number:04d}-test-s{seed}-{measure(opened)}", "evaluate", words)
    responses = test.out / "report" / "responses.jsonl"
    if not responses.exists():
        if finished(train) and not (train.out / "model").exists():
            shutil.rmtree(train.out)  # the model was removed after an earlier comparison: trained anew
        execute(train, opened, stopping, keep=True)
        execute(test, opened, stopping, keep=True)
    clear(train, keep=opened.sweep.keep_models)
    return responses


def measure(opened: Opened) -> str:
    """Digest of what responses depend on beside the facts of the study: `evaluate` and the test problems."""
    only_statistics = {"benchmarks", "ks", "confidence", "resamples", "examples"}
    evaluate = trial_params(opened.sweep, opened.present).evaluate.model_dump(exclude=only_statistics)
    return digest([evaluate, digest_path(Path(opened.sweep.test))])[:6]


def _evaluation(opened: Opened, side: _Side, seed: int, model: str) -> tuple[str, ...]:
    sweep = opened.sweep
    words = ["--model", f"rl={model}", "--test", sweep.test, "--examples", sweep.examples]
    more = [*overrides(sweep, side.values), "evaluate.benchmarks=[test]", f"run.seed={seed}"]
    return (*words, *(word for each in more for word in ("--set", each)))
