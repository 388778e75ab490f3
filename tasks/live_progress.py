"""What a flow run shows in Prefect: its name and tags, the event of a new model, and of the stage that runs progress,
health, forecast and a link to its MLflow run.

A name that a person gave stays. Prefect's server makes one of two words of the package coolname, such as spotted-hare;
the form in the browser one of a Greek letter, a place and perhaps a word, such as kappa2-ledos-void, whose places are
listed in the page's script. The lines of a running stage go to the terminal as they come, or to the flow run's log.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import prefect
from coolname.data import config
from httpx import HTTPError
from prefect import get_client, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from mathrl.compose.changes import changed_since_commit
from mathrl.compose.load import NO_PRESET
from mathrl.core.environment import Variable
from mathrl.core.metrics import pause
from mathrl.core.paths import is_group
from mathrl.core.records import RunRecord, read_record
from mathrl.core.records import run_name as changed_run_name
from mathrl.evaluation.forecast import Forecast, recorded_forecast
from mathrl.params.schema import READS, STAGES
from mathrl.servers.protocol import read_states, servers_text
from mathrl.tasks.report import artifact_key, health_markdown, link_rollouts, link_run, records_of
from mathrl.tasks.repro import ADVICE, NOISE
from mathrl.tasks.workspace import Workspace, commit_of


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


MODEL_MADE = "mathrl.model.made"


def name_run(kind: str, target: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """Name the flow run after what it runs, unless a person named it, and tag it; returns the tags.

    `kind` is stage, recipe or sweep, `target` the name of one. If the server does not answer, the run goes on
    under its old name.
    """
    tags = run_tags(kind, target, workspace, seeds)
    name = str(flow_run.name or "")
    if was_generated(name):
        name = stage_run_name(target, workspace) if kind == "stage" else run_name(f"{kind} {target}", workspace, seeds)
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=sorted({*flow_run.tags, *tags}))
    except (HTTPError, PrefectException) as error:
        get_run_logger().warning("the run keeps the name %s: %s", flow_run.name, error)
    return tags


def stage_run_name(target: str, workspace: Workspace) -> str:
    """The name that MLflow's run of the stage has too; for the pipeline, the run that holds its stages."""
    sections = workspace.params.model_dump(mode="json", by_alias=True)
    pipeline = {section: sections[section] for stage in STAGES for section in READS[stage]}
    changed = changed_since_commit(pipeline, workspace.preset or "", workspace.folder, workspace.groups)
    return changed_run_name(target, workspace.composition, changed, commit_of(workspace.folder))


def run_name(title: str, workspace: Workspace, seeds: Sequence[int]) -> str:
    """The name of a recipe's or a sweep's run.

    >>> run_name("recipe study", Workspace(Path(), None, "gsm8k", ("rl.optimizer.lr=2e-4",)), [0, 1])
    'recipe study gsm8k lr=2e-4 seeds 0, 1'
    """
    settings = [o for o in workspace.overrides if not (o.startswith("run.seed=") or is_group(o))]
    words = [title, workspace.composition, *(setting.split(".", 1)[-1][:28] for setting in settings[:3])]
    words += [f"and {len(settings) - 3} more"] if len(settings) > 3 else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    return " ".join(filter(None, words))


def run_tags(kind: str, target: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """The tags by which runs are found.

    >>> run_tags("stage", "rl", Workspace(Path(), None, "gsm8k"), [1])
    ['stage:rl', 'preset:gsm8k', 'seed:1']
    """
    preset = [f"preset:{workspace.preset}"] if workspace.preset else []
    chosen = [group.replace("=", ":", 1) for group in workspace.groups]
    return [f"{kind}:{target}", *preset, *chosen, *(f"seed:{seed}" for seed in seeds)]


def announce_model(step: str, model: Path, workspace: Workspace) -> None:
    """Emit Prefect's event `mathrl.model.made`, for automations, if there is a server and `model` is a folder.

    The payload has the model's folder and the settings of the run, so that an automation can start another flow
    with the same settings.
    """
    served = os.environ.get("PREFECT_API_URL") and not Variable.OWN_SERVER.get()
    if not served or not model.is_dir():
        return
    emit_event(
        MODEL_MADE,
        resource={
            "prefect.resource.id": f"mathrl.model.{workspace.folder.name}.{step}",
            "prefect.resource.name": step,
            "mathrl.folder": str(model),
        },
        payload={
            "stage": step,
            "model": str(model),
            "preset": workspace.preset or NO_PRESET,
            "overrides": list(workspace.overrides),
        },
    )


GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|"
    "chi|psi|omega"
)
PLACES = re.compile(r"`(andromedae\.[a-z.-]+)`")


def was_generated(name: str) -> bool:
    """
    >>> was_generated("spotted-hare"), was_generated("lower-lr"), was_generated("baseline-rerun")
    (True, False, False)
    """
    first, _, rest = name.partition("-")
    if first in _words("adj_any") and rest in _words("subj"):
        return True
    star = re.fullmatch(rf"(?:{GREEK})\d*-(.+)", name)
    return star is not None and bool(_places() & {star[1], star[1].rpartition("-")[0]})


@cache
def _words(kind: str) -> frozenset[str]:
    """The words of one of coolname's lists, which may consist of others."""
    rule: Any = config[kind]
    return frozenset(rule.get("words", ())).union(*map(_words, rule.get("lists", ())))


@cache
def _places() -> frozenset[str]:
    """What Prefect's form names runs after; empty if its pages are not installed."""
    scripts = (file.read_text(encoding="utf-8") for file in Path(prefect.__ui_static_path__).glob("assets/index-*.js"))
    lists = (match[1].split(".") for text in scripts if (match := PLACES.search(text)))
    return frozenset(place for places in lists for place in places if place)
