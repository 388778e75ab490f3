"""What a running stage shows in Prefect: its progress, its health, a link to its MLflow run."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from mathrl.core.progress import pause
from mathrl.core.records import RunRecord, read_record
from tasks.mlflow_links import artifact_key, link_run, records_of
from tasks.report import health_markdown


class Live:
    """The stage's progress as a Prefect artifact, made when there is something to show."""

    def __init__(self, stage: str, file: Path) -> None:
        self.stage, self.file = stage, file
        self.artifact: Any = None
        self.record: RunRecord | None = None
        self.health: Any = None
        self.silent = False
        self.began = self.due = time.monotonic()

    def refresh(self) -> None:
        """Called about once a second; shows something as often as a run of this age is looked at."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + pause(now - self.began)
        state = self._state()
        if state is None:
            return
        share = min(100.0, 100.0 * state["done"] / max(1, state["total"] or 0))
        left = state["seconds_left"]
        text = f"{state['title']}: {state['done']:.0f}"
        text += f" of {state['total']:.0f}" if state["total"] else ""
        text += f", about {left:.0f} s left" if left else ""
        self._show(share, text)
        self._show_health()
        self._show_link()

    def finish(self) -> None:
        state = self._state()
        if self.record is None:  # over before it was looked at, and the progress is the next stage's by now
            records = {record.step: record for record in records_of(str(flow_run.id or ""))}
            self.record = records.get(self.stage)
        if self.artifact is not None:
            self._show(100.0, f"{self.stage}: done")
        self._show_health()
        self._show_link()
        if state is not None:
            self.file.unlink(missing_ok=True)

    def _state(self) -> Any:
        """What the stage wrote; None where it has not begun, or where the file is already the next one's."""
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
        """A new version of the markdown artifact `<stage>-health` whenever the findings have changed."""
        record = read_record(self.record.folder) if self.record else None
        told = record.health if record else None
        if told is not None and told != self.health:
            self.health, key = told, artifact_key(f"{self.stage}-health")
            self._try(lambda: create_markdown_artifact(health_markdown(told), key=key, description="health"))

    def _show_link(self) -> None:
        if self.record:
            record = self.record
            self._try(lambda: link_run(record, self.stage))

    def _try(self, send: Callable[[], Any]) -> None:
        """A server that does not answer costs the picture of the progress, never the stage.

        It is asked no more: each of the client's attempts takes minutes, and the stage's end would wait.
        """
        if self.silent:
            return
        try:
            send()
        except (HTTPError, PrefectException) as error:
            get_run_logger().warning("%s: its progress cannot be shown: %s", self.stage, error)
            self.silent = True
