"""Where the lines of a running stage go: to the terminal as they come, or to the flow run's log."""

import sys
from collections.abc import Iterable

from prefect import get_run_logger

from mathrl.core.environment import Variable
from mathrl.tasks.dvc_output import ADVICE, NOISE
from mathrl.tasks.workspace import Workspace


def line_handler(name: str, workspace: Workspace, warnings: Iterable[str] = ()) -> "Console | FlowLog":
    """What the output of a run goes to, piece by piece; the warnings about its parameters go first."""
    handler: Console | FlowLog
    if Variable.CONSOLE.get():
        if workspace.settings:
            print(f"{', '.join(workspace.settings)}: in {workspace.folder}", file=sys.stderr)
        handler = Console()
    else:
        handler = FlowLog(f"{name} in {workspace.folder}")
    for line in warnings:
        handler(f"warning: {line}\n")
    return handler


class Console:
    """Lines and progress bars as they come, without DVC's advice.

    A stage's last line with its error is not written: the command ends with it.
    """

    def __init__(self) -> None:
        self.tail, self.held, self.bar = "", "", False

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if self.bar and not line.startswith("\r"):
                sys.stderr.write("\n")  # the end of a bar's line, which is written by now
            self.bar = False
            if not line.strip() or line.startswith(ADVICE) or NOISE.match(line):
                continue
            sys.stderr.write(self.held)
            self.held = f"{line}\n" if line.startswith("error: ") else ""
            sys.stderr.write("" if self.held else f"{line}\n")
        if "\r" in self.tail:  # a bar that redraws itself
            sys.stderr.write(self.tail)
            self.tail, self.bar = "", True
        sys.stderr.flush()


class FlowLog:
    """Complete lines to the flow run's log, so that the UI shows them, without the redrawings of progress bars."""

    def __init__(self, title: str) -> None:
        self.logger, self.tail = get_run_logger(), ""
        self.logger.info(title)

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if line.strip() and "\r" not in line:
                self.logger.info(line)
