"""A stage at other places: any start, data and output. `python -m mathrl.stages.recipe_step rl FOLDER --start …`.

How the steps of recipes are run (pipelines/recipes/<name>/dvc.yaml). What a step makes lies in FOLDER: model/, report/,
summary.json, or files of rows. Each branch imports its own stage alone, so that a step starts quickly.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mathrl.stages.stage_run import StageRun, run_stage

Work = Callable[[StageRun], None]
ONE = ("start", "dev", "examples", "test", "rates", "difficulty", "reward-model", "process-reward-model",
       "critic", "reference", "teacher")  # fmt: skip
SEVERAL = ("data", "replay", "model", "evaluated", "set")


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mathrl.stages.recipe_step", description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("out", type=Path, help="The folder, or for summary the file, that is written.")
    for name in ONE:
        parser.add_argument(f"--{name}", type=Path)
    for name in SEVERAL:
        parser.add_argument(f"--{name}", action="append", default=[], type=str)
    return parser.parse_args(words)


def wire(given: argparse.Namespace) -> Work:
    """The stage's work with its places.

    Raises:
        SystemExit: no such stage.
    """
    out, data = given.out, tuple(map(Path, given.data))
    trained: Mapping[str, Any] = {"model": out / "model", "report": out / "report"}
    if given.stage == "base":
        return partial(_make_base, folder=out / "model")
    if given.stage == "curate":
        from mathrl.stages.curate import make_splits

        return partial(make_splits, out=out / "splits", report=out / "report")
    if given.stage == "sft":
        from mathrl.stages.sft import fine_tune

        return partial(fine_tune, start=given.start, data=data, dev=given.dev, **trained)
    if given.stage == "difficulty":
        from mathrl.stages.difficulty import measure_pass_rates

        return partial(
            measure_pass_rates, start=given.start, data=data[0], examples=given.examples, out=out, report=out / "report"
        )
    if given.stage == "mix":
        from mathrl.stages.mix import mix_problems

        return partial(mix_problems, data=data[0], rates=given.rates, out=out)
    if given.stage == "rl":
        from mathrl.stages.rl import reinforce

        paths: Mapping[str, Any] = {
            name: path for name, path in vars(given).items() if isinstance(path, Path) and name != "out"
        }
        return partial(reinforce, data=data, **paths, **trained)
    if given.stage == "evaluate":
        from mathrl.stages.evaluate import evaluate_models

        return partial(
            evaluate_models,
            models=_named(given.model),
            examples=given.examples,
            test=given.test,
            summary_file=out / "summary.json",
            report=out / "report",
        )
    if given.stage == "summary":
        from mathrl.stages.summary import summarise_recipe

        return partial(summarise_recipe, evaluated=[each.split("=", 1) for each in given.evaluated], out=out)
    return _preferences(given, data, trained)


def _preferences(given: argparse.Namespace, data: Sequence[Path], trained: Mapping[str, Any]) -> Work:
    if given.stage == "sample":
        from mathrl.stages.sample import sample_responses

        return partial(sample_responses, start=given.start, data=data, examples=given.examples, out=given.out)
    if given.stage == "dpo":
        from mathrl.stages.dpo import prefer

        return partial(prefer, start=given.start, data=data, **trained)
    if given.stage in ("reward_model", "process_reward_model"):
        from mathrl.stages.reward_model import train

        replay = tuple(map(Path, given.replay))
        return partial(train, start=given.start, data=data, replay=replay, **trained)
    raise SystemExit(f"no stage {given.stage!r} for a step")


def _make_base(run: StageRun, folder: Path) -> None:
    from mathrl.models.load import make_base  # torch

    make_base(run.params.model, folder, run.params.run.seed)


def _named(pairs: Sequence[str]) -> dict[str, Path]:
    return {label: Path(folder) for label, _, folder in (pair.partition("=") for pair in pairs)}


def inputs_of(given: argparse.Namespace) -> list[Path]:
    """Every file and folder that the options name."""
    one = [getattr(given, name.replace("-", "_")) for name in ONE]
    labelled = [each.split("=", 1)[1] for each in (*given.model, *given.evaluated)]
    return [path for path in [*one, *map(Path, (*given.data, *given.replay, *labelled))] if path is not None]


def main(words: Sequence[str]) -> Any:
    given = parse(words)
    run_stage(
        given.stage,
        wire(given),
        inputs=inputs_of(given),
        outputs=[given.out],
        overrides=given.set,
        step="/".join(given.out.parts[-2:]),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
