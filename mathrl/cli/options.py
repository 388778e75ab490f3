"""Options that several commands share, and groups of options as one parameter of a command."""

import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

Presets = Annotated[
    list[str] | None,
    typer.Option("--preset", help="Preset: a file of params/presets, by its name; of several the later one wins."),
]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override such as rl.steps=200; repeatable.")]
AllowDirty = Annotated[
    bool,
    typer.Option("--allow-dirty", help="Run from the last commit even if code or params have uncommitted changes."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def as_words(preset: str | Sequence[str] | None, overrides: Sequence[str] | None) -> str:
    """The options as a person types them, for the next command; of overrides with one key the last alone.

    >>> as_words("gsm8k", ["rl.steps=9", "rl.optimizer.lr=1e-6", "rl.steps=20"])
    ' --preset gsm8k --set rl.optimizer.lr=1e-6 --set rl.steps=20'
    """
    presets = [preset] if isinstance(preset, str) else preset or ()
    given = list(overrides or ())
    keys = [override.partition("=")[0].strip() for override in given]
    last = [override for at, override in enumerate(given) if keys[at].endswith("+") or keys[at] not in keys[at + 1 :]]
    options = [("--preset", name) for name in presets] + [("--set", override) for override in last]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in options)


def joined(presets: Sequence[str] | None) -> str | None:
    """Presets as one name: ["gsm8k", "dapo"] -> "gsm8k+dapo"."""
    return "+".join(presets) if presets else None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option per field of each parameter that is a dataclass, whose fields are annotated options.

    Example:
        @grouped
        def grade(file: Path, limits: Limits) -> None: ...  # FILE --longest 10 --smallest 2
    """
    groups: dict[str, Any] = {}
    parameters = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
            for field in fields(parameter.annotation)
        ]

    @wraps(command)
    def flat(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat
