"""A trial as one MLflow run: a record as stages leave them, which the mirror uploads under the study's run.

The runs of its seeds stand under it.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import JsonlSink
from mathrl.core.paths import code_version
from mathrl.core.records import RunRecord, Status, records_folder
from mathrl.params import load_params
from mathrl.params.schema import STAGES
from mathrl.sweeps.study import Opened


class TrialRecord:
    """records/<study>-t<number>-<begun>: what the trial has, its dev curve, what came out.

    Opened again by the worker that adopts the trial, it goes on where it was.
    """

    def __init__(self, opened: Opened, number: int) -> None:
        self.opened, self.number = opened, number
        name, _, begun = opened.tracked.rpartition("-")
        self.record = RunRecord(records_folder() / f"{name}-t{number:04d}-{begun}")

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
