"""A stage with chosen start, data and output: `python -m mathrl.stages.recipe_step rl FOLDER --start …`.

This runs the steps of recipes (pipelines/recipes/<name>/dvc.yaml). A step writes its outputs into FOLDER: model/,
report/, summary.json, or files of rows.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from mathrl.params.recipe_steps import STEP_STAGES
from mathrl.params.watched_code import MODULES
from mathrl.stages.stage_run import StageRun, run_stage

OTHERS = ("difficulty", "reward_model", "process_reward_model", "critic", "reference", "teacher")
SINGLE = ("start", "dev", "examples", "test", "rates", *OTHERS)
REPEATED = ("data", "replay", "model", "evaluated", "claim", "set")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mathrl.stages.recipe_step", description=__doc__)
    parser.add_argument("stage", choices=(*STEP_STAGES, "summary"))
    parser.add_argument("out", type=Path, help="Folder to write (stage summary: a file).")
    for name in SINGLE:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    for name in REPEATED:
        parser.add_argument(f"--{name}", action="append", default=[], type=str)
    return parser.parse_args(arguments)


def wire(args: argparse.Namespace) -> Callable[[StageRun], None]:
    """The function `work` of the stage's module, with the inputs and outputs that its parameters name."""
    if args.stage == "base":
        from mathrl.models.load import make_base  # torch

        texts = [Path(file) for file in args.data]
        return lambda run: make_base(run.params.model, args.out / "model", run.params.run.seed, texts)
    work = import_module(MODULES.get(args.stage, f"mathrl.stages.{args.stage}")).work
    out, data = args.out, tuple(map(Path, args.data))
    places = {name: getattr(args, name) for name in SINGLE} | {
        "data": data,
        "split": data[0] if data else None,
        "replay": tuple(map(Path, args.replay)),
        "models": {label: Path(folder) for label, folder in (pair.split("=", 1) for pair in args.model)},
        "others": {name: getattr(args, name) for name in OTHERS if getattr(args, name)},
        "evaluated": [pair.split("=", 1) for pair in args.evaluated],
        "claim": [pair.split("=", 1) for pair in args.claim],
        "base": False,
        "out": out,
        "model": out / "model",
        "report": out / "report",
        "splits": out / "splits",
        "summary_file": out / "summary.json",
        "metrics_file": None,  # the pipeline's, for DVC
    }
    return partial(work, **{name: places[name] for name in signature(work).parameters if name != "run"})


def inputs_of(args: argparse.Namespace) -> list[Path]:
    """The files and folders that the options name: the step's inputs."""
    single = [getattr(args, name) for name in SINGLE]
    labelled = [pair.split("=", 1)[1] for pair in (*args.model, *args.evaluated)]
    return [path for path in [*single, *map(Path, (*args.data, *args.replay, *labelled))] if path is not None]


def main(arguments: Sequence[str]) -> Any:
    args = parse(arguments)
    run_stage(
        args.stage,
        wire(args),
        inputs=inputs_of(args),
        outputs=[args.out],
        overrides=args.set,
        step="/".join(args.out.parts[-2:]),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
