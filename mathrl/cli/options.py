"""Options that several commands share."""

from typing import Annotated

import typer

Preset = Annotated[str | None, typer.Option(help="Preset: a file of params/presets, by its name.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override such as rl.lr=2e-4; repeatable.")]
AllowDirty = Annotated[
    bool,
    typer.Option("--allow-dirty", help="Run from the last commit even if code or params have uncommitted changes."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
