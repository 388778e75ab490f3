"""Where the lines of a running stage go: to the terminal as they come, or to the flow run's log."""

import sys

from prefect import get_run_logger

from mathrl.core.environment import Variable
from tasks.workspace import Workspace


def shower(name: str, workspace: Workspace) -> "Console | Logged":
    if Variable.CONSOLE.get():
        if workspace.settings:
            print(f"{', '.join(workspace.settings)}: in {workspace.folder}", file=sys.stderr)
        return Console()
    return Logged(f"{name} in {workspace.folder}")


class Console:
    """Lines and bars as they come, less DVC's advice on git, which nobody needs to follow here."""

    ADVICE = (
        "Generating lock",
        "Updating lock",
        "To track the changes",
        "\tgit add",
        "To enable auto staging",
        "\tdvc config core.autostage",
        "Use `dvc push`",
    )

    def __init__(self) -> None:
        self.tail = ""

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if line.strip() and not line.startswith(self.ADVICE):
                sys.stderr.write(line + "\n")
        if "\r" in self.tail:  # a bar that redraws itself
            sys.stderr.write(self.tail)
            self.tail = ""
        sys.stderr.flush()


class Logged:
    """Whole lines to the flow run's log, so that the UI shows them; a bar's redrawings are left out."""

    def __init__(self, title: str) -> None:
        self.logger, self.tail = get_run_logger(), ""
        self.logger.info(title)

    def __call__(self, text: str) -> None:
        *lines, self.tail = (self.tail + text).split("\n")
        for line in lines:
            if line.strip() and "\r" not in line:
                self.logger.info(line)
