"""`mathrl evaluate`: any model folder on any benchmark."""

import os
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.params import load_params


def evaluate_model(
    model: str,
    benchmark: str,
    preset: str | None,
    overrides: Sequence[str],
    limit: int | None,
    samples: int | None,
    output: Path | None,
) -> None:
    """Print the table row and write figures, responses and pictures to `output`."""
    here = Path(model).absolute()  # relative to where the person stands, not to the checkout
    target = output.absolute() if output else None
    if not here.exists() and ((here.parent.is_dir() and here.parent != Path.cwd()) or Path(model).is_absolute()):
        raise UserError(f"{model}: no such folder; give a Hugging Face model folder or a hub id")
    os.chdir(main_checkout())
    given = {"evaluate.limit": limit, "evaluate.samples": samples}
    wanted = [*overrides, *(f"{name}={value}" for name, value in given.items() if value is not None)]
    params = load_params(preset=preset, overrides=wanted)
    name = Path(model).name
    target = target or Path("reports") / "evaluations" / f"{name}-{benchmark}"
    from mathrl.reports.evaluation import evaluate_once  # torch, transformers

    figures = evaluate_once(here if here.exists() else model, benchmark, params, target)
    print("  ".join(str(part) for part in figures["row"]))
    too_long = figures["prompts_too_long"]
    if too_long:
        print(f"{too_long} prompts were longer than prompt.max_tokens and left out")
    print(f"figures, every response and pictures: {target}")
