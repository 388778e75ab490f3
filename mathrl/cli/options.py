"""Options that several commands share."""

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from mathrl.core.errors import UserError
from mathrl.core.paths import GROUPS, is_group
from mathrl.params.messages import did_you_mean

Choices = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=NAME]...",
        show_default=False,
        help="What the experiment is made of: data=NAME or FILE, model=NAME, hub id or FOLDER, method=NAME, "
        "hardware=NAME or 1x24GB (docs/how_to/experiments.md).",
    ),
]
Presets = Annotated[
    list[str] | None,
    typer.Option("--preset", help="Preset: a named composition; of several, as in a+b, the later one wins."),
]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override such as rl.steps=200; repeatable.")]
AllowDirty = Annotated[
    bool,
    typer.Option("--allow-dirty", help="Run from the last commit even if code or params have uncommitted changes."),
]


def with_choices(choices: Sequence[str] | None, overrides: Sequence[str] | None) -> list[str]:
    """The groups and the overrides as one list.

    Raises:
        UserError: an argument that chooses no group.
    """
    for choice in choices or ():
        if is_group(choice):
            continue
        key, equals, _ = choice.partition("=")
        if "." in key and equals:
            raise UserError(f"{choice}: a parameter is set by an option: --set {choice}")
        hint = did_you_mean(key, GROUPS)
        raise UserError(f"{choice}: write KEY=NAME with one of {', '.join(GROUPS)}, such as data=gsm8k{hint}")
    return [*(choices or ()), *(overrides or ())]


def as_words(preset: str | Sequence[str] | None, overrides: Sequence[str] | None) -> str:
    """The options as a person types them, for the next command; of overrides with one key the last alone.

    >>> as_words("gsm8k", ["rl.steps=9", "rl.optimizer.lr=1e-6", "rl.steps=20"])
    ' --preset gsm8k --set rl.optimizer.lr=1e-6 --set rl.steps=20'
    >>> as_words(None, ["data=gsm8k"])
    ' data=gsm8k'
    """
    presets = [preset] if isinstance(preset, str) else preset or ()
    given = list(overrides or ())
    keys = [override.partition("=")[0].strip() for override in given]
    last = [override for at, override in enumerate(given) if keys[at].endswith("+") or keys[at] not in keys[at + 1 :]]
    groups = "".join(f" {shlex.quote(override)}" for override in last if is_group(override))
    options = [("--preset", name) for name in presets]
    options += [("--set", override) for override in last if not is_group(override)]
    return groups + "".join(f" {option} {shlex.quote(value)}" for option, value in options)


def join_presets(presets: Sequence[str] | None) -> str | None:
    """Presets as one name: ["gsm8k", "dapo"] -> "gsm8k+dapo"."""
    return "+".join(presets) if presets else None
