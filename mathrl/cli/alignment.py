"""`mathrl alignment`: whether sampler, trainer and a plain Hugging Face forward compute the same log-probs."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathrl.cli.options import Overrides, Presets, joined
from mathrl.cli.output import AsJson, print_document
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_NO
from mathrl.core.paths import main_checkout

if TYPE_CHECKING:
    from mathrl.reports.alignment import ThreeForwards

DEV = Path("data/curated/dev.jsonl")


def alignment(
    model: Annotated[str, typer.Argument(help="Hugging Face model folder or hub id.")],
    problems: Annotated[Path | None, typer.Option(help="Curated problems; default: data/curated/dev.jsonl.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of problems to compare (two responses each).")] = 16,
    presets: Presets = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare log-probs of the sampling engine, the trainer and a plain Hugging Face forward in float32.

    All three score the same sampled responses. The exit status is 1 if two of them differ by more than a limit.
    """
    local, rows = Path(model).absolute(), problems.absolute() if problems else DEV
    os.chdir(main_checkout())
    params = load_params(preset=joined(presets), overrides=overrides or ())
    if not rows.is_file():
        raise UserError(f"{rows}: no such file; run `mathrl run curate`, or give --problems FILE")
    from mathrl.reports.alignment import compare_forwards  # torch and transformers: after the checks

    measured = compare_forwards(local if local.exists() else model, rows, limit, params)
    if as_json:
        gaps = [asdict(gap) | {"fine": gap.fine} for gap in measured.gaps]
        print_document(asdict(measured) | {"gaps": gaps, "fine": all(gap.fine for gap in measured.gaps)})
    else:
        _print(measured, params.model.precision)
    if not all(gap.fine for gap in measured.gaps):
        raise SystemExit(EXIT_NO)


def _print(measured: "ThreeForwards", precision: str) -> None:
    print(
        f"{measured.tokens:,} tokens of {measured.responses} responses, sampled by {measured.engine} "
        f"({measured.dtype}); trainer {precision}"
    )
    print(measured.architecture)
    print(f"{'':<44}{'max |d log p|':>14}{'mean':>10}{'limit':>9}{'mean exp':>11}{'limit':>7}")
    for gap in measured.gaps:
        print(
            f"{f'{gap.first} and {gap.second}':<44}{gap.largest:>14.2g}{gap.mean:>10.2g}"
            f"{gap.tolerance:>9g}{gap.alignment:>11.6f}{gap.limit:>7g}{'' if gap.fine else '  too far'}"
        )
