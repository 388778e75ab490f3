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
from mathrl.core.files import read_json, write_json
from mathrl.core.hashing import digest_path
from mathrl.core.metrics import JsonlSink
from mathrl.core.paths import code_version, home
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
        self.folder = home() / "records" / f"{name}-t{number:04d}-{begun}"

    def begin(self, values: Mapping[str, Any]) -> None:
        (self.folder / "artifacts").mkdir(parents=True, exist_ok=True)
        every = load_params().model_dump(mode="json", by_alias=True)
        sweep = self.opened.sweep
        files = (sweep.start, *sweep.data, sweep.dev, sweep.examples)
        write_json(self.folder / "run.json", {
            "stage": "trial", "name": f"{sweep.study}/t{self.number:04d}", "key": self.folder.name,
            "status": "running", "pid": os.getpid(), "host": socket.gethostname(),
            "started": time.time(), "params": dict(values),
            "pipeline": self.opened.tracked, "pipeline_params": {
                **{section: every[section] for section in STAGES}, "sweep": sweep.model_dump(mode="json")
            }, "git": code_version(), "inputs": {file: digest_path(Path(file)) for file in files},
            "outputs": {}, "workspace": str(Path.cwd()), "sweep": self.opened.tracked,
            "prefect_flow_run": Variable.FLOW_RUN.get(),
        })  # fmt: skip
        self.metrics = JsonlSink(self.folder / "metrics.jsonl", resume_after=sys.maxsize)

    def report(self, step: int, accuracy: float) -> None:
        self.metrics.log(step, {"dev/accuracy": accuracy})

    def end(self, status: str, outcome: str, **more: Any) -> None:
        """`status` as of stages: finished, failed or stopped; `outcome` in words."""
        facts = read_json(self.folder / "run.json")
        more |= {"status": status, "outcome": outcome, "ended": time.time()}
        write_json(self.folder / "run.json", {**facts, **more})
