"""Is the winner better than the present parameters? Both are trained on fresh seeds and evaluated on test."""

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
from mathrl.sweeps.study import OpenStudy, best
from mathrl.sweeps.trial import RunFailed, TrialRun, clear, execute, finished, rl_run

FRESH = 1000  # distance of the first fresh seed from run.seed: no trial has used it
NAMES = ("present parameters", "winner")


@dataclass(frozen=True)
class _Side:
    number: int
    values: dict[str, Any]


def compare(opened: OpenStudy, stop_requested: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Train both on the fresh seeds, evaluate on test, test the difference; comparison.json in the folder.

    Finished runs of an earlier call are not run again, unless `evaluate` or the test problems have changed.

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
        jobs = [[pool.submit(_one, opened, side, seed, stop_requested) for seed in seeds] for side in sides]
        try:
            files = [[job.result() for job in side] for side in jobs]
        except RunFailed as failed:
            pool.shutdown(cancel_futures=True)
            raise UserError(f"the comparison of study {opened.sweep.study} stopped: {failed}") from None
    params = trial_params(opened.sweep, sides[0].values)
    runs = common_problems(
        [read_run(file, None, "test") for side_files in files for file in side_files], allow_missing=False
    )
    half = len(files[0])
    comparison = compare_sides(runs[:half], runs[half:], NAMES, "pass_at_1", params.evaluate)
    test = comparison["comparison"]
    verdict = test["verdict"] if test["shown"] else f"a tie: {test['verdict']}"
    out = {"winner": winner.number, "seeds": list(seeds), "verdict": verdict, **comparison}
    write_json(opened.folder / "comparison.json", out)
    return out


def _one(opened: OpenStudy, side: _Side, seed: int, stop_requested: Callable[[], bool]) -> Path:
    """The responses on test of one side's run with one fresh seed."""
    train = rl_run(opened, f"t{side.number:04d}-fresh-s{seed}", side.values, seed)
    arguments = _evaluation(opened, side, seed, f"{train.out}/model")
    test = TrialRun(
        opened.folder, f"t{side.number:04d}-test-s{seed}-{evaluation_digest(opened)}", "evaluate", arguments
    )
    responses = test.out / "report" / "responses.jsonl"
    if not responses.exists():
        if finished(train) and not (train.out / "model").exists():
            shutil.rmtree(train.out)  # an earlier comparison removed the model: train it again
        execute(train, opened, stop_requested, keep=True)
        execute(test, opened, stop_requested, keep=True)
    clear(train, keep=opened.sweep.keep_models)
    return responses


def evaluation_digest(opened: OpenStudy) -> str:
    """Digest of what responses depend on beside the study's fixed facts: `evaluate` and the test problems."""
    only_statistics = {"benchmarks", "ks", "confidence", "examples"}
    evaluate = trial_params(opened.sweep, opened.present).evaluate.model_dump(exclude=only_statistics)
    return digest([evaluate, digest_path(Path(opened.sweep.test))])[:6]


def _evaluation(opened: OpenStudy, side: _Side, seed: int, model: str) -> tuple[str, ...]:
    sweep = opened.sweep
    arguments = ["--model", f"rl={model}", "--test", sweep.test, "--examples", sweep.examples]
    settings = [*overrides(sweep, side.values), "evaluate.benchmarks=[test]", f"run.seed={seed}"]
    return (*arguments, *(word for setting in settings for word in ("--set", setting)))
