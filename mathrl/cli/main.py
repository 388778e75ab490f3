"""The `mathrl` command: its commands are in the files of this folder, imported when they are called.

`mathrl --help` takes the first line of each command's docstring from its file, so that it answers at once.
"""

import ast
import importlib
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import mathrl as package
from mathrl.cli.output import only_json, print_error
from mathrl.core.environment import wait_without_spinning
from mathrl.core.errors import EXIT_USER_ERROR, UserError, without_logins
from mathrl.core.files import ESCAPE

# In the order of `mathrl --help`. mathrl/cli/<command>.py has a function of this name, or a group of commands.
GROUPS = {
    "Start": ("init", "inspect", "doctor", "ui"),
    "Plan and run": ("plan", "run", "recipe", "sweep", "launch", "serve"),
    "Evaluate and compare": ("evaluate", "compare", "grade"),
    "Look closer": ("runs", "models", "data"),
    "Runs of other trainers": ("import", "watch"),
}
# Commands whose file or function has another name: both.
PLACES = {"import": ("other_trainers", "import_run"), "watch": ("other_trainers", "watch")}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
# Old commands: the new words, and the release that moved them. They work for one minor version more, with a warning.
MOVED = {
    name: (f"{group} {name}", "0.2.0")
    for group, names in {
        "runs": ("health", "report", "rollouts", "audit", "controls", "sync"),
        "models": ("lineage", "reproduce", "promote", "rollback", "alignment"),
        "data": ("sources", "decontaminate", "decide", "export"),
    }.items()
    for name in names
}


class LazyGroup(TyperGroup):
    """The commands; only the one that is called is imported."""

    def __init__(self, **options: Any) -> None:
        names: dict[str, Any] = dict.fromkeys(COMMANDS)  # for the suggestion when a name is mistyped
        super().__init__(**options | {"commands": names})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            return import_command(cmd_name)
        if cmd_name not in MOVED:
            return None
        print(f"warning: `mathrl {cmd_name}` is now `mathrl {MOVED[cmd_name][0]}`", file=sys.stderr)
        return import_command(MOVED[cmd_name][0].split()[0]).get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, Any] = {
            name: TyperCommand(name, help=help_line(name), rich_help_panel=title)
            for title, names in GROUPS.items()
            for name in names
        }
        TyperGroup(name=self.name, help=self.help, params=self.params, commands=listed).format_help(ctx, formatter)


def import_command(name: str) -> Any:
    file, own_name = PLACES.get(name, (name, name))
    function = getattr(importlib.import_module(f"mathrl.cli.{file}"), own_name)
    if isinstance(function, typer.Typer):
        return get_command(function)
    single = typer.Typer(add_completion=False)
    single.command(name)(function)
    return get_command(single)


def help_line(name: str) -> str:
    """The first line of the command's docstring, or of its file's, without importing it."""
    file, own_name = PLACES.get(name, (name, name))
    tree = ast.parse((Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == own_name]
    return (ast.get_docstring(functions[0] if functions else tree) or "").partition("\n")[0]


app = typer.Typer(
    name="mathrl", cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mathrl {package.__version__}")
        raise typer.Exit


@app.callback()
def mathrl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language models to reason about mathematics with reinforcement learning."""


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit status 2, and so is a missing package.

    With --json the document on stdout is then {"error": the line}.
    """
    wait_without_spinning()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPE)  # a response may have half of a surrogate pair
    if "--json" in sys.argv[1:]:
        only_json()
    try:
        app()
    except ModuleNotFoundError as error:
        if (error.name or "mathrl").partition(".")[0] in ("mathrl", "flows", "tasks"):
            raise
        _fail(f"{error}; without the extra platform only `mathrl grade` works: pip install 'mathrl[platform]'")
    except UserError as error:
        _fail(without_logins(str(error)))
    except SystemExit as end:
        if end.code == EXIT_USER_ERROR:
            print_error("the command line is wrong; stderr says where")
        elif end.code:
            print_error(f"the command ended with exit status {end.code}")
        raise
    except Exception as error:
        print_error(f"an error of mathrl itself: {type(error).__name__}: {without_logins(str(error))}")
        raise


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    print_error(message)
    raise SystemExit(EXIT_USER_ERROR) from None
