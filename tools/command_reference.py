"""The site's page of commands, from the command line itself: the text of every `--help`."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from mathrl.cli.main import app


def command_reference() -> str:
    """The page's markdown."""
    lines = ["# Commands", "", "Written from the command line itself: the same as `mathrl COMMAND --help`.", ""]
    for name, command in commands(get_command(app), "mathrl"):
        parameters = [parameter for parameter in command.params if parameter.name != "help"]
        usage = " ".join([name, *(_usage(parameter) for parameter in parameters)])
        lines += [f"## {name}", "", f"`{usage}`", "", _paragraphs(command.help), ""]
        if parameters:
            lines += ["| | | default |", "|---|---|---|", *map(_row, parameters), ""]
    return "\n".join(lines)


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that runs, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), f"{path} {name}")


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return f"[{parameter.opts[0]}]"
    name = _metavar(parameter)
    return name if parameter.required else f"[{name}]"


def _metavar(argument: Any) -> str:
    return (argument.metavar or argument.name).upper()


def _row(parameter: Any) -> str:
    name = ", ".join(parameter.opts) if parameter.param_type_name == "option" else _metavar(parameter)
    kind = parameter.type_descriptor.annotation
    choices = f" One of {', '.join(get_args(kind))}." if get_origin(kind) is Literal else ""
    shown = "required" if parameter.required else f"`{parameter.default}`" if parameter.default else ""
    return f"| `{name}` | {parameter.help}{choices} | {shown} |"


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n"))
