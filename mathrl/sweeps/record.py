"""A trial as one MLflow run: a record like a stage's, which the mirror uploads under the study's run.

The MLflow runs of its seeds are below it.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import JsonlSink
from mathrl.core.paths import code_version
from mathrl.core.records import RunRecord, Status, records_folder
from mathrl.params.schema import STAGES
from mathrl.sweeps.study import OpenStudy


class TrialRecord:
    """records/<study>-t<number>-<id of the study>: the trial's parameters, dev curve and outcome.

    The worker that adopts a dead worker's trial writes the same record.
    """

    def __init__(self, opened: OpenStudy, number: int) -> None:
        self.opened, self.number = opened, number
        name, _, study_id = opened.tracked.rpartition("-")
        self.record = RunRecord(records_folder() / f"{name}-t{number:04d}-{study_id}")

    def begin(self, values: Mapping[str, Any]) -> None:
        self.record.artifacts.mkdir(parents=True, exist_ok=True)
        sections, sweep = load_params().model_dump(mode="json", by_alias=True), self.opened.sweep
        files = (sweep.start, *sweep.data, sweep.dev, sweep.examples)
        self.record.update(
            stage="trial",
            name=f"{sweep.study}/t{self.number:04d}",
            key=self.record.folder.name,
            status="running",
            started=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            workspace=str(Path.cwd()),
            git=code_version(),
            params=dict(values),
            changed=dict(values),
            inputs={file: digest_path(Path(file)) for file in files},
            pipeline=self.opened.tracked,
            pipeline_params={name: sections[name] for name in STAGES} | {"sweep": sweep.model_dump(mode="json")},
            sweep=self.opened.tracked,
            prefect_flow_run=Variable.FLOW_RUN.get(),
        )
        self.metrics = JsonlSink(self.record.metrics_file, resume_after=sys.maxsize)

    def report(self, step: int, accuracy: float) -> None:
        self.metrics.log(step, {"dev/accuracy": accuracy})

    def end(self, status: Status, outcome: str, **more: Any) -> None:
        """`outcome` says in words how the trial ended; `more` are other fields of its record."""
        self.record.update(status=status, outcome=outcome, ended=time.time(), **more)
