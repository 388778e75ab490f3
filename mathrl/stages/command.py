"""The command of every stage: `python -m mathrl.stages.STAGE [OUT --start … --data … --set …]`.

Without arguments a stage reads and writes the files of the pipeline, the defaults of its function `work`. With OUT it
is a step of a recipe (pipelines/recipes/<name>/dvc.yaml): it reads what its options name, and writes into the folder
OUT: model/, report/, splits/, summary.json, or files of rows.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from mathrl.params import Params
from mathrl.stages.stage_run import StageRun, run_stage

# The options by the parameters of `work` that they fill; those of the second kind may be repeated.
SINGLE = {name: (name,) for name in ("start", "dev", "examples", "test", "rates")} | {
    "others": ("difficulty", "reward_model", "process_reward_model", "critic", "reference", "teacher")
}
ALWAYS_READ = ("start", "dev", "rates")  # the other files by a stage with settings that ask for them
REPEATED = {
    "data": "data",
    "split": "data",
    "replay": "replay",
    "models": "model",
    "evaluated": "evaluated",
    "claim": "claim",
}


def main(
    stage: str,
    work: Callable[..., None],
    *,
    inputs: Sequence[str | Path] = (),
    outputs: Sequence[str | Path] = (),
    before: Callable[[Params], None] = lambda params: None,
    words: Sequence[str] | None = None,
) -> None:
    """Run the stage as `run_stage` does; `inputs` and `outputs` are the pipeline's, empty for a stage of recipes alone.

    `words` are the arguments, without them those of the command line. `before` renews the links of
    data/inputs/STAGE, which belong to the pipeline where it has the stage.
    """
    args = parse(stage, work, sys.argv[1:] if words is None else words, pipeline=bool(outputs))
    if args.out is None:
        run_stage(stage, work, inputs=inputs, outputs=outputs, overrides=args.set, before=before)
        return
    run_stage(
        stage,
        wire(work, args),
        inputs=inputs_of(args),
        outputs=[args.out],
        overrides=args.set,
        step="/".join(args.out.parts[-2:]),
        before=before if not outputs else lambda params: None,
    )


def parse(stage: str, work: Callable[..., None], words: Sequence[str], *, pipeline: bool = False) -> argparse.Namespace:
    """The arguments of a step; only what the stage's `work` takes is an option.

    Of a stage of the `pipeline` OUT may be missing, and then all options but --set.
    """
    parser = argparse.ArgumentParser(prog=f"python -m mathrl.stages.{stage}", allow_abbrev=False)
    parser.add_argument(
        "out", type=Path, nargs="?" if pipeline else None, help="Folder to write (stage summary: a file)."
    )
    taken = signature(work).parameters
    for name, options in SINGLE.items():
        for option in options if name in taken else ():
            parser.add_argument(f"--{option.replace('_', '-')}", type=Path)
    for option in dict.fromkeys(option for name, option in REPEATED.items() if name in taken):
        parser.add_argument(f"--{option}", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], help="Dotted override of params/.")
    args = parser.parse_args(words)
    if args.out is None and any(value for name, value in vars(args).items() if name != "set"):
        parser.error("these options need OUT, the folder to write")
    for name in ALWAYS_READ if args.out is not None else ():
        if name in taken and getattr(args, name) is None:
            parser.error(f"with OUT it needs --{name}")
    return args


def wire(work: Callable[..., None], args: argparse.Namespace) -> Callable[[StageRun], None]:
    """`work` with the inputs and outputs that its parameters name."""
    out, given = args.out, vars(args)
    data = tuple(map(Path, given.get("data", ())))
    places: dict[str, Any] = {name: given.get(name) for name in SINGLE} | {
        "data": data,
        "split": data[0] if data else None,
        "replay": tuple(map(Path, given.get("replay", ()))),
        "models": {label: Path(folder) for label, folder in _pairs(args, "model")},
        "others": {name: given[name] for name in SINGLE["others"] if given.get(name)},
        "evaluated": _pairs(args, "evaluated"),
        "claim": _pairs(args, "claim"),
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
    given = vars(args)
    single = [given[option] for options in SINGLE.values() for option in options if given.get(option)]
    labelled = [Path(path) for option in ("model", "evaluated") for _, path in _pairs(args, option)]
    return [*single, *map(Path, (*given.get("data", ()), *given.get("replay", ()))), *labelled]


def _pairs(args: argparse.Namespace, option: str) -> list[list[str]]:
    """The values NAME=VALUE of an option, each in two."""
    return [pair.split("=", 1) for pair in getattr(args, option, ())]
