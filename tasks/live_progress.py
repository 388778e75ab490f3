"""What a running stage shows in Prefect: its progress, its health, its forecast, a link to its MLflow run.

Where the lines of a running stage go: to the terminal as they come, or to the flow run's log.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect import get_client, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from mathrl.core.environment import Variable
from mathrl.core.progress import pause
from mathrl.core.records import RunRecord, read_record
from mathrl.evaluation.forecast import Forecast, recorded_forecast
from mathrl.servers.protocol import read_states, servers_text
from mathrl.tasks.report import artifact_key, health_markdown, link_rollouts, link_run, records_of
from mathrl.tasks.repro import ADVICE, NOISE
from mathrl.tasks.workspace import Workspace


class LiveProgress:
    """A running stage's progress as a Prefect artifact, created when there is something to show."""

    def __init__(self, stage: str, file: Path) -> None:
        self.stage, self.file = stage, file
        self.artifact: Any = None
        self.record: RunRecord | None = None
        self.health: Any = None
        self.forecast: Forecast | None = None
        self.server_failed = False
        self.health_artifact: Any = None
        self.start()

    def announce(self, before: Sequence[str]) -> None:
        """Shown before the stage starts, so that a run has something to look at from its first second."""
        self._show(0.0, f"{self.stage}: after {', '.join(before)}" if before else f"{self.stage}: starting")

    def start(self) -> None:
        self.started = self.next_update = time.monotonic()

    def skip(self) -> None:
        if self.artifact is not None:
            self._show(100.0, f"{self.stage}: nothing changed, DVC has its outputs")

    def refresh(self) -> None:
        """Called about once a second; updates what is shown less often the longer the stage runs."""
        now = time.monotonic()
        if now < self.next_update:
            return
        self.next_update = now + pause(now - self.started)
        state = self._state()
        if state is None:
            return
        share = min(100.0, 100.0 * state["done"] / max(1, state["total"] or 0))
        servers = servers_text(read_states(self.record.folder)) if self.record else ""
        self._show(share, progress_text(state) + servers)
        self._show_health()
        self._show_forecast()
        self._show_link()

    def finish(self) -> None:
        state = self._state()
        if self.record is None:  # ended before the first look, and the file is the next stage's by now
            records = {record.step: record for record in records_of(str(flow_run.id or ""))}
            self.record = records.get(self.stage)
        if self.artifact is not None:
            figures = figures_text(state) if state else ""
            self._show(100.0, f"{self.stage}: done{figures}")
        self._show_health()
        self._show_forecast()
        self._show_link()
        if state is not None:
            self.file.unlink(missing_ok=True)

    def _state(self) -> Any:
        """What the stage wrote to its progress file; None before it did, or if the file is the next stage's."""
        try:
            state = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        record = read_record(Path(state["record"])) if state.get("record") else None
        if state.get("record") and (record is None or record.step != self.stage):
            return None
        self.record = record
        return state

    def _show(self, share: float, text: str) -> None:
        def send() -> None:
            if self.artifact is None:
                key = artifact_key(f"{self.stage}-progress")
                self.artifact = create_progress_artifact(share, key=key, description=text)
            else:
                update_progress_artifact(self.artifact, share, description=text)

        self._try(send)

    def _show_health(self) -> None:
        """The markdown artifact `<stage>-health`, brought up to date whenever the findings have changed."""
        record = read_record(self.record.folder) if self.record else None
        health = record.health if record else None
        if health is not None and health != self.health:
            self.health, key = health, artifact_key(f"{self.stage}-health")
            warnings = len(health["findings"])
            about = f"Health of {self.stage}: {health['colour']}, {warnings} warning{'s' * (warnings != 1)}"
            text = health_markdown(health)

            def send() -> None:
                if self.health_artifact is None:
                    self.health_artifact = create_markdown_artifact(text, key=key, description=about)
                else:
                    with get_client(sync_client=True) as client:
                        client.update_artifact(self.health_artifact, ArtifactUpdate(data=text, description=about))

            self._try(send)

    def _show_forecast(self) -> None:
        """A new version of the markdown artifact `<stage>-forecast` after each dev evaluation that allows one."""
        forecast = recorded_forecast(self.record) if self.record else None
        if forecast is not None and forecast != self.forecast:
            self.forecast, key = forecast, artifact_key(f"{self.stage}-forecast")
            text = f"# Forecast\n\nFrom the dev curve up to step {forecast.step}: {forecast.sentence()}.\n"
            about = f"Where the dev accuracy of {self.stage} is going: {forecast.accuracy} at step {forecast.end}"
            self._try(lambda: create_markdown_artifact(text, key=key, description=about))

    def _show_link(self) -> None:
        if self.record:
            record = self.record
            self._try(lambda: link_run(record, self.stage))
            self._try(lambda: link_rollouts(record, self.stage))

    def _try(self, send: Callable[[], Any]) -> None:
        """Send to the server unless it failed to answer before: the stage itself goes on without it.

        It is not asked again, since each of the client's attempts takes minutes and would delay the stage's end.
        """
        if self.server_failed:
            return
        try:
            send()
        except (HTTPError, PrefectException) as error:
            get_run_logger().warning("%s: its progress cannot be shown: %s", self.stage, error)
            self.server_failed = True


def progress_text(state: Mapping[str, Any]) -> str:
    """A progress file's content in words.

    >>> progress_text({"title": "rl", "done": 3, "total": 9, "seconds_left": 60.2, "figures": {"accuracy": 0.61}})
    'rl: 3 of 9, about 60 s left; accuracy 0.61'
    """
    text = f"{state['title']}: {state['done']:.0f}"
    text += f" of {state['total']:.0f}" if state["total"] else ""
    text += f", about {duration(state['seconds_left'])} left" if state["seconds_left"] else ""
    return text + figures_text(state)


def duration(seconds: float) -> str:
    """
    >>> duration(60.2), duration(900), duration(30_000)
    ('60 s', '15 min', '8.3 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def figures_text(state: Mapping[str, Any]) -> str:
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in state.get("figures", {}).items())
    return f"; {figures}" if figures else ""


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
