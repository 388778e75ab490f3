"""One record → one MLflow run under the pipeline's parent run, with the links that make lineage.

Tags: `mathrl.record` (the record's name), `mathrl.pipeline` (digest of the resolved parameters),
`mlflow.mathrl.output.<path>` and `….input.<path>` (content digests). A stage that DVC skipped is linked by them: the
run that made the input of a run that did happen is found by its output's digest, and stands in the parent's tag
`stage.<name>`. In a sweep the parent is the study's run, and between them stands the trial's.

A name that MLflow refuses is escaped (`tracking.batches`), with the name as written in the run's tag
`name.<escaped>`. What MLflow refuses all the same is left out with a message, and costs nothing else.
"""

import getpass
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from mathrl.core.environment import Variable
from mathrl.core.files import encodable
from mathrl.core.metrics import TIMING_PREFIXES, complete_rows
from mathrl.core.mirroring import TRAINING, results_address
from mathrl.core.paths import home, rollouts_page
from mathrl.core.records import MirrorState, RunRecord, TrackerState, read_record, record_name, records_folder
from mathrl.core.results import training_sentence, training_table
from mathrl.evaluation.forecast import forecast_of
from mathrl.params.load import dump_yaml
from mathrl.tracking.batches import CODE, MlflowBatches, Point, escape, link, links, mlflow_tags, queries
from mathrl.tracking.client import NOTE, experiment, experiments, keep_views, log_model, model_paths
from mathrl.tracking.lineage import linked_maker
from mathrl.tracking.run_list import BEST, parent_params, refresh_parent

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "killed": "KILLED"}
DEV = "dev/accuracy"
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard"}  # the trackers beside MLflow


class Upload:
    """Calls of one MLflow client; `everywhere` are the experiments in which makers are looked for."""

    def __init__(self, client: Any) -> None:
        self.client, self.everywhere = client, experiments(client)
        self.batches = MlflowBatches(client)

    def start(self, record: RunRecord) -> tuple[str, str]:
        """The MLflow run of a record and its parent's; both are made only where they do not exist yet."""
        trial = read_record(records_folder() / record.trial) if record.trial else None
        above, parent = self.start(trial) if trial else ("", "")
        experiment_id = experiment(self.client, question(record))
        keep_views(self.client, self.client.get_experiment(experiment_id))
        self.everywhere = experiments(self.client)
        with FileLock(home() / "tracking.lock"):
            parent = parent or self._parent(record, experiment_id)
            existing = self._find(f"tags.`mathrl.record` = '{record.folder.name}'")
            if existing:
                return existing.info.run_id, parent
            tags = {"mlflow.parentRunId": above or parent, "mathrl.record": record.folder.name, **_tags(record)}
            run = self.client.create_run(
                experiment_id,
                run_name=record_name(record, record.name),
                start_time=_milliseconds(record.started),
                tags=mlflow_tags(tags),
            )
        run_id = str(run.info.run_id)
        if record.keeps_rollouts:
            self.batches.tags(run_id, {"mathrl.rollouts": rollouts_page(record.folder.name)})
        self.batches.tags(run_id, {NOTE: run_note(record, experiment_id, parent)})
        self.batches.params(run_id, flatten(record.params))
        self._log_datasets(run_id, record)
        if not record.sweep:
            self.batches.tags(parent, {f"stage.{record.name}": run_id})
        self._link_makers(parent, record.inputs, run_id)
        refresh_parent(self.client, self.batches, parent)
        return run_id, parent

    def reopen(self, run_id: str) -> None:
        """A run that failed or was stopped goes on."""
        self.client.update_run(run_id, status="RUNNING")
        if "mathrl.error" in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, "mathrl.error")

    def metrics(self, run_id: str, rows: Sequence[Mapping[str, Any]], after: int | None) -> int | None:
        """Send the rows of later steps than `after`; returns the last step sent."""
        points: list[Point] = []
        for row in rows:
            step = int(row["step"])
            if after is not None and step <= after:
                continue
            points += _points(row)
            after = step
        self.batches.metrics(run_id, points)
        return after

    def metrics_again(self, run_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the rows that differ from those of the same steps in MLflow, which then has both and shows the later.

        A resumed run does the steps after its checkpoint again, and not every engine repeats them to the bit.
        """
        before: dict[str, dict[int, float]] = {}

        def differs(point: Point) -> bool:
            if point.name not in before:
                history = self.client.get_metric_history(run_id, escape(point.name))
                history.sort(key=lambda old_point: old_point.timestamp)
                before[point.name] = {old_point.step: old_point.value for old_point in history}
            was = before[point.name].get(point.step)
            return was is None or (was != point.value and not (math.isnan(was) and math.isnan(point.value)))

        points: list[Point] = []
        for row in rows:
            points_of_row = _points(row)
            compared = [point for point in points_of_row if not point.name.startswith(TIMING_PREFIXES)]
            if any(differs(point) for point in compared):
                points += points_of_row
        self.batches.metrics(run_id, points)

    def health(self, run_id: str, report: Mapping[str, Any]) -> None:
        """Tags `health` (green, yellow, red) and `health.<rule>`, a sentence each."""
        tags = {"health": report["colour"]}
        for finding in report["findings"]:
            steps = f"step {finding['first']} to {finding['last']}"
            tags[f"health.{finding['rule']}"] = f"{steps}: {finding['evidence']}; cause: {finding['cause']}"
        before = self.client.get_run(run_id).data.tags
        for name in (name for name in before if name.startswith("health.") and name not in mlflow_tags(tags)):
            self.client.delete_tag(run_id, name)  # a resumed run does not find it again
        self.batches.tags(run_id, tags)

    def forecast(self, run_id: str, record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> None:
        """Metrics `forecast/…` at each dev evaluation among `rows`, from the curve up to it, and the tag `forecast`."""
        if not any(DEV in row for row in rows):
            return
        all_rows = complete_rows(record.metrics_file)
        points: list[Point] = []
        for row in rows:
            step = int(row["step"])
            dev_forecast = forecast_of(record, [r for r in all_rows if int(r["step"]) <= step]) if DEV in row else None
            if dev_forecast is not None:
                values = dev_forecast.accuracy.to_row("forecast/dev_accuracy") | {
                    "forecast/gain": dev_forecast.gain.mean
                }
                at = _milliseconds(row["at"])
                points += [Point(name, value, at, step) for name, value in values.items()]
                sentence = dev_forecast.sentence()
        if points:
            self.batches.metrics(run_id, points)
            self.batches.tags(run_id, {"forecast": sentence})

    def link_trackers(self, state: MirrorState, record: RunRecord, status: str) -> None:
        """Tags `mathrl.wandb` and `mathrl.tensorboard`: where these trackers have the run."""
        tags = {f"mathrl.{name}": address for name, address in tracker_addresses(record).items()}
        self.batches.tags(state.run_id, tags | {NOTE: run_note(record, state.experiment, state.parent, status)})

    def finish(self, run_id: str, parent: str, record: RunRecord, status: str) -> None:
        """Final figures, files, output digests, status."""
        self._log_datasets(run_id, record)  # those that the stage named on its way
        final = {f"final/{name}": value for name, value in (_best_on_dev(record) | record.summary).items()}
        if status == "finished":
            self._log_models(run_id, record, final)
        else:
            self._log_figures(run_id, record, final)
        self._link_makers(parent, record.inputs, run_id)  # a maker that was not uploaded at the start
        experiment_id = self.client.get_run(run_id).info.experiment_id
        tags = {NOTE: run_note(record, experiment_id, parent, status)}
        tags |= {link("output", path): digest for path, digest in record.outputs.items()}
        tags |= {f"resolved.{name}": str(value) for name, value in record.resolved.items()}
        tags |= {"mathrl.outcome": record.outcome} if record.outcome else {}
        tags |= {"mathrl.error": record.error[:5000]} if record.error else {}
        self.batches.tags(run_id, tags)
        if record.artifacts.is_dir() and any(record.artifacts.iterdir()):
            self._log_files(run_id, record.artifacts)
        end = _milliseconds(record.ended or record.started)
        self.client.set_terminated(run_id, STATUS[status], end)
        refresh_parent(self.client, self.batches, parent)
        if not record.trial:  # one that was ended early says nothing of its study
            self.client.set_terminated(parent, STATUS[status], end)

    def _log_models(self, run_id: str, record: RunRecord, final: Mapping[str, float]) -> None:
        """The models that the stage made and measured, and its figures bound to them and to their data."""
        from mlflow.entities import LoggedModelInput, LoggedModelOutput

        run = self.client.get_run(run_id)
        inputs, outputs = run.inputs.model_inputs, run.outputs.model_outputs if run.outputs else []
        params = flatten({record.stage: record.params.get(record.stage, {})})
        models = [
            log_model(self.client, run.info.experiment_id, path, digest, run_id, _origin(record), params)
            for path, digest in model_paths(record.outputs).items()
        ]
        steps = max((metric.step for metric in run.data._metric_objs), default=0)
        outputs_before = {output.model_id for output in outputs}
        new = dict.fromkeys(model.model_id for model in models)
        if links := [LoggedModelOutput(model, steps) for model in new if model not in outputs_before]:
            self.client.log_outputs(run_id, links)
        # The last one is what the stage is about: sft makes models/base on its way.
        self._log_figures(run_id, record, final, model=models[-1].model_id if models else None)

        linked = {model.model_id for model in inputs}
        for number, (label, path) in enumerate(record.measured["models"].items() if record.measured else ()):
            assert record.measured is not None
            model = log_model(self.client, run.info.experiment_id, path, record.inputs[path], run_id)
            if model.model_id not in linked:
                self.client.log_inputs(run_id, models=[LoggedModelInput(model.model_id)])
                linked.add(model.model_id)
            prefix = f"{label}/"
            figures = {k.removeprefix(prefix): v for k, v in record.summary.items() if k.startswith(prefix)}
            # One step each, so that the run's own pass_at_1 is that of the last model.
            self._log_figures(run_id, record, figures, model.model_id, record.measured["dataset"], number)

    def _log_figures(
        self,
        run_id: str,
        record: RunRecord,
        figures: Mapping[str, float],
        model: str | None = None,
        dataset: str | None = None,
        step: int = 0,
    ) -> None:
        """Metrics, bound to a model and a dataset where these are given."""
        at, digests = _milliseconds(record.ended or record.started), _datasets(record)
        dev = next((path for path in digests if path.endswith("dev.jsonl")), None)
        points = []
        for name, value in figures.items():
            data = dataset or (dev if "/dev" in name else None)
            bound = {"model_id": model} if model else {}
            bound |= {"dataset_name": data, "dataset_digest": digests[data]} if model and data in digests else {}
            points.append(Point(name, value, at, step, bound))
        self.batches.metrics(run_id, points)

    def _parent(self, record: RunRecord, experiment_id: str) -> str:
        study, pipeline = record.sweep, record.pipeline
        role, key = ("study", study) if study else ("pipeline", pipeline)
        title = record.recipe or (record.name if record.imported_from else "pipeline")
        name = f"sweep {study}" if study else record_name(record, title)
        existing = self._find(f"tags.`mathrl.{role}` = '{key}' and tags.`mathrl.role` = '{role}'")
        if existing:
            return str(existing.info.run_id)
        origin = _origin(record) | {"mlflow.source.name": "mathrl"}
        tags = mlflow_tags({f"mathrl.{role}": key, "mathrl.role": role, **origin})
        start = _milliseconds(record.started)
        run = self.client.create_run(experiment_id, run_name=name, start_time=start, tags=tags)
        self.batches.params(run.info.run_id, flatten(parent_params(record)))
        self.client.log_text(run.info.run_id, dump_yaml(record.pipeline_params), "params.yaml")
        return str(run.info.run_id)

    def _link_makers(
        self, parent: str, inputs: Mapping[str, str], reader: str, tags: Mapping[str, str] | None = None
    ) -> None:
        """Tag the parent with the runs that made `inputs`, and with the runs that made theirs.

        A maker that the reader's `tags` name stays: a later run may have made the same bytes with other parameters.
        """
        for path, digest in inputs.items():
            newest = map(self._find, queries("output", path, digest))
            maker = linked_maker(self.client, tags or {}, path, digest) or next(filter(None, newest), None)
            if maker is None:
                continue
            self.batches.tags(reader, {link("made_by", path): maker.info.run_id})
            stage = f"stage.{maker.data.tags['dvc.stage']}"
            if self.client.get_run(parent).data.tags.get(escape(stage)) == maker.info.run_id:
                continue
            self.batches.tags(parent, {stage: maker.info.run_id})
            self._link_makers(parent, links(maker.data.tags, "input"), maker.info.run_id, maker.data.tags)

    def _log_datasets(self, run_id: str, record: RunRecord) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(name=path, digest=digest, source_type="dvc", source=json.dumps({"path": path})),
                [InputTag("mlflow.data.context", record.stage)],
            )
            for path, digest in _datasets(record).items()
        ]
        if inputs:
            self.client.log_inputs(run_id, datasets=inputs)

    def _log_files(self, run_id: str, artifacts: Path) -> None:
        """Pictures and texts as files; examples.json, a list of rows, as a table."""
        table = artifacts / "examples.json"
        if table.exists():
            rows = json.loads(table.read_text(encoding="utf-8"))
            if rows:
                columns = {name: [encodable(str(row.get(name, ""))) for row in rows] for name in rows[0]}
                self.client.log_table(run_id, columns, "examples_table.json")
        self.client.log_artifacts(run_id, str(artifacts))

    def _find(self, query: str) -> Any | None:
        runs = self.client.search_runs(self.everywhere, query, max_results=1)
        return runs[0] if runs else None


def run_note(record: RunRecord, experiment_id: str, parent: str, status: str = "running") -> str:
    """A run's description in MLflow: its status or how it went, in a sentence, and links."""
    table = training_table(complete_rows(record.metrics_file), record.summary)
    colour = record.health["colour"] if record.health else ""
    sentence = training_sentence(record.name, table, colour) if status == "finished" else f"{record.name}: {status}"
    links = {"The whole run": f"#/experiments/{experiment_id}/runs/{parent}{TRAINING}"}
    links |= {"All runs, best first": results_address("", experiment_id).lstrip("/")}
    server = os.environ.get("PREFECT_API_URL", "").rstrip("/").removesuffix("/api")
    if server and record.prefect_flow_run and not Variable.OWN_SERVER.get():
        links |= {"Run in Prefect": f"{server}/runs/flow-run/{record.prefect_flow_run}"}
    addresses = tracker_addresses(record).items()
    links |= {f"Run in {TITLES[name]}": address for name, address in addresses if "://" in address}
    if record.keeps_rollouts:
        links |= {"Rollouts (served by `mathrl ui`)": rollouts_page(record.folder.name)}
    return f"{sentence}\n\n" + " · ".join(f"[{text}]({address})" for text, address in links.items())


def tracker_addresses(record: RunRecord) -> dict[str, str]:
    """Where the trackers beside MLflow have the run: {"wandb": "https://wandb.ai/me/mathrl/runs/5b1ce0a1f3d2"}."""
    states = [TrackerState.read(record.folder, name) for name in TITLES]
    return {state.tracker: state.address for state in states if state.address}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"rl": {"lr": 0.1, "ks": [1]}} → {"rl.lr": "0.1", "rl.ks": "[1]"}."""
    out: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return out


def question(record: RunRecord) -> str:
    """What names the run's experiment: a sweep, a recipe, a preset; "" for the pipeline."""
    if record.imported_from:
        return "imported runs"
    if record.sweep:
        return f"sweep {record.sweep.rpartition('-')[0]}"
    return record.recipe or (f"preset {record.preset}" if record.preset else "")


def _datasets(record: RunRecord) -> dict[str, str]:
    """Names of what the stage read and named as data, with their digests."""
    read = {path: digest for path, digest in record.inputs.items() if path.startswith("data/")}
    named = {name: dataset["digest"] for name, dataset in record.datasets.items()}
    return {encodable(name): digest for name, digest in (read | named).items()}


def _tags(record: RunRecord) -> dict[str, str]:
    return {
        **_origin(record),
        "dvc.stage": record.name,
        "mathrl.pipeline": record.pipeline,
        "mathrl.key": record.key,
        **{link("input", path): digest for path, digest in record.inputs.items()},
    }


def _origin(record: RunRecord) -> dict[str, str]:
    tags = {
        "mlflow.source.git.commit": record.commit,
        "git.dirty": str(record.dirty).lower(),
        "mathrl.workspace": record.workspace,
        "mlflow.user": _user(),
        "mlflow.source.name": f"mathrl.stages.{record.stage}",
    }
    tags |= {f"{CODE}{name}": text for name, text in record.code.items() if text}
    optional = {"prefect.flow_run_id": record.prefect_flow_run, "mathrl.study": record.sweep}
    optional |= {"mathrl.imported_from": record.imported_from}
    return tags | {name: text for name, text in optional.items() if text}


def _user() -> str:
    """The account's name; its number where it has none, as in a container that runs as any user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _points(row: Mapping[str, Any]) -> list[Point]:
    """The figures of a row of metrics.jsonl."""
    at, step = _milliseconds(row["at"]), int(row["step"])
    return [Point(name, value, at, step) for name, value in row.items() if name not in ("step", "at")]


def _best_on_dev(record: RunRecord) -> dict[str, float]:
    accuracies = [row[DEV] for row in complete_rows(record.metrics_file) if DEV in row]
    return {BEST: max(accuracies)} if accuracies else {}


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
