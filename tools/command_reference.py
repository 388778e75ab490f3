"""The site's page of commands, from the command line itself: what `--help` says, in one place."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from mathrl.cli.main import app


def command_reference() -> str:
    """The page's markdown."""
    lines = ["# Commands", "", "Written from the command line itself: the same as `mathrl COMMAND --help`.", ""]
    for name, command in commands(get_command(app), "mathrl"):
        usage = " ".join([name, *(_usage(each) for each in command.params if each.name != "help")])
        lines += [f"## {name}", "", f"`{usage}`", "", _paragraphs(command.help), ""]
        rows = [_row(each) for each in command.params if each.name != "help"]
        if rows:
            lines += ["| | | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), f"{path} {name}")


def _usage(given: Any) -> str:
    if given.param_type_name == "option":
        return f"[{given.opts[0]}]"
    name = _metavar(given)
    return name if given.required else f"[{name}]"


def _metavar(argument: Any) -> str:
    return (argument.metavar or argument.name).upper()


def _row(given: Any) -> str:
    name = ", ".join(given.opts) if given.param_type_name == "option" else _metavar(given)
    kind = given.type_descriptor.annotation
    choices = f" One of {', '.join(get_args(kind))}." if get_origin(kind) is Literal else ""
    shown = "required" if given.required else f"`{given.default}`" if given.default else ""
    return f"| `{name}` | {given.help}{choices} | {shown} |"


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(each.split()) for each in (text or "").split("\n\n"))
