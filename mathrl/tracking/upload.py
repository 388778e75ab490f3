"""One record → one MLflow run under the pipeline's parent run, with the links that make lineage.

Tags: `mathrl.record` (the record's name), `mathrl.pipeline` (hash of the resolved parameters),
`output.<path>` and `input.<path>` (content digests). A stage that DVC skipped is linked by them: whoever made
the input of a run that did happen is found by its output's digest, and its run stands in the parent's tag
`stage.<name>`. In a sweep the parent is the study's run, and between them stands the trial's.
"""

import getpass
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from mathrl.core.files import read_json
from mathrl.core.paths import home
from mathrl.tracking.client import experiment, experiments
from mathrl.tracking.models import log_model, model_paths

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "killed": "KILLED"}
METRICS_A_CALL = 900
LINKED = 50  # stages that a note links


class Upload:
    """Calls of one MLflow client; `everywhere` are the experiments in which makers are looked for."""

    def __init__(self, client: Any) -> None:
        self.client, self.everywhere = client, experiments(client)

    def start(self, facts: Mapping[str, Any], record: str) -> tuple[str, str]:
        """The MLflow run of a record and its parent's; both are made only where they do not exist yet."""
        trial = home() / "records" / facts["trial"] / "run.json" if facts.get("trial") else None
        if trial is not None and trial.exists():
            above, parent = self.start(read_json(trial), facts["trial"])
        else:
            above = parent = ""
        place = experiment(self.client, question(facts))
        self.everywhere = experiments(self.client)
        with FileLock(home() / "tracking.lock"):
            parent = parent or self._parent(facts, place)
            found = self._find(f"tags.`mathrl.record` = '{record}'")
            if found:
                return found.info.run_id, parent
            run = self.client.create_run(
                place,
                run_name=_label(facts),
                start_time=_milliseconds(facts["started"]),
                tags={"mlflow.parentRunId": above or parent, "mathrl.record": record, **_tags(facts)},
            )
        run_id = str(run.info.run_id)
        self._log_params(run_id, facts["params"])
        self._log_datasets(run_id, facts)
        if not facts.get("sweep"):
            self.client.set_tag(parent, f"stage.{_label(facts)}", run_id)
        self._link_makers(parent, facts["inputs"], run_id)
        self._describe(parent)
        return run_id, parent

    def reopen(self, run_id: str) -> None:
        """A run that failed or was stopped goes on."""
        self.client.update_run(run_id, status="RUNNING")
        if "mathrl.error" in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, "mathrl.error")

    def metrics(self, run_id: str, rows: Sequence[Mapping[str, Any]], after: int | None) -> int | None:
        """Send the rows of later steps than `after`; returns the last step sent."""
        from mlflow.entities import Metric

        batch: list[Any] = []
        for row in rows:
            step = int(row["step"])
            if after is not None and step <= after:
                continue
            at = _milliseconds(row["at"])
            batch += [Metric(_name(name), value, at, step) for name, value in row.items() if name not in ("step", "at")]
            after = step
        for start in range(0, len(batch), METRICS_A_CALL):
            self.client.log_batch(run_id, metrics=batch[start : start + METRICS_A_CALL])
        return after

    def health(self, run_id: str, report: Mapping[str, Any]) -> None:
        """Tags `health` (green, yellow, red) and `health.<rule>`, a sentence each."""
        self.client.set_tag(run_id, "health", report["colour"])
        for each in report["findings"]:
            text = f"step {each['first']} to {each['last']}: {each['evidence']}; cause: {each['cause']}"
            self.client.set_tag(run_id, f"health.{each['rule']}", text)

    def finish(self, run_id: str, parent: str, facts: Mapping[str, Any], status: str, artifacts: Path) -> None:
        """Final figures, files, output digests, status."""
        self._log_datasets(run_id, facts)  # those that the stage named on its way
        if status == "finished":
            self._log_models(run_id, facts)
        else:
            self._log_figures(run_id, facts, {f"final/{k}": v for k, v in facts.get("summary", {}).items()})
        self._link_makers(parent, facts["inputs"], run_id)  # a maker that was not uploaded at the start
        self._describe(parent)
        for path, digest in facts.get("outputs", {}).items():
            self.client.set_tag(run_id, f"output.{path}", digest)
        if facts.get("outcome"):
            self.client.set_tag(run_id, "mathrl.outcome", facts["outcome"])
        if facts.get("error"):
            self.client.set_tag(run_id, "mathrl.error", facts["error"][:5000])
        if any(artifacts.iterdir()):
            self._log_files(run_id, artifacts)
        end = _milliseconds(facts.get("ended", facts["started"]))
        self.client.set_terminated(run_id, STATUS[status], end)
        if facts["stage"] in ("evaluate", "register") and status == "finished":
            for name, value in facts.get("summary", {}).items():
                self.client.log_metric(parent, _name(name), value)
        if not facts.get("trial"):  # one that was ended early says nothing of its study
            self.client.set_terminated(parent, STATUS[status], end)

    def _log_models(self, run_id: str, facts: Mapping[str, Any]) -> None:
        """The models that the stage made and measured, and its figures bound to them and to their data."""
        from mlflow.entities import LoggedModelInput, LoggedModelOutput

        run = self.client.get_run(run_id)
        inputs, outputs = run.inputs.model_inputs, run.outputs.model_outputs if run.outputs else []
        params = flatten({facts["stage"]: facts["params"].get(facts["stage"], {})})
        made = {
            path: log_model(self.client, run.info.experiment_id, path, digest, run_id, _origin(facts), params)
            for path, digest in model_paths(facts.get("outputs", {})).items()
        }
        steps = max((metric.step for metric in run.data._metric_objs), default=0)
        new = [each.model_id for each in made.values()]
        known = {each.model_id for each in outputs}
        if links := [LoggedModelOutput(each, steps) for each in dict.fromkeys(new) if each not in known]:
            self.client.log_outputs(run_id, links)
        final = {f"final/{name}": value for name, value in facts.get("summary", {}).items()}
        # The last one is what the stage is about: sft makes models/base on its way.
        self._log_figures(run_id, facts, final, model=new[-1] if new else None)

        measured = facts.get("measured", {})
        known = {each.model_id for each in inputs}
        for place, (label, path) in enumerate(measured.get("models", {}).items()):
            digest = facts["inputs"][path]
            model = log_model(self.client, run.info.experiment_id, path, digest, run_id)
            if model.model_id not in known:
                self.client.log_inputs(run_id, models=[LoggedModelInput(model.model_id)])
                known.add(model.model_id)
            figures = {
                name.removeprefix(f"{label}/"): value
                for name, value in facts["summary"].items()
                if name.startswith(f"{label}/")
            }
            # One step each, so that the run's own pass_at_1 is that of the last model.
            self._log_figures(run_id, facts, figures, model.model_id, measured["dataset"], place)

    def _log_figures(
        self,
        run_id: str,
        facts: Mapping[str, Any],
        figures: Mapping[str, float],
        model: str | None = None,
        dataset: str | None = None,
        step: int = 0,
    ) -> None:
        """Metrics, bound to a model and a dataset where these are told."""
        from mlflow.entities import Metric

        at, named = _milliseconds(facts.get("ended", facts["started"])), _datasets(facts)
        batch = []
        for name, value in figures.items():
            data = dataset or next((path for path in named if "/dev" in name and path.endswith("dev.jsonl")), None)
            bound = {"model_id": model} if model else {}
            bound |= {"dataset_name": data, "dataset_digest": named[data]} if model and data in named else {}
            batch.append(Metric(_name(name), value, at, step, **bound))
        for start in range(0, len(batch), METRICS_A_CALL):
            self.client.log_batch(run_id, metrics=batch[start : start + METRICS_A_CALL])

    def _parent(self, facts: Mapping[str, Any], place: str) -> str:
        study, pipeline = facts.get("sweep"), facts["pipeline"]
        role, known_by = ("study", study) if study else ("pipeline", pipeline)
        name = f"sweep {study}" if study else f"{facts.get('recipe') or 'pipeline'} {pipeline[:6]}"
        found = self._find(f"tags.`mathrl.{role}` = '{known_by}' and tags.`mathrl.role` = '{role}'")
        if found:
            return str(found.info.run_id)
        tags = {f"mathrl.{role}": known_by, "mathrl.role": role, **_origin(facts)}
        run = self.client.create_run(place, run_name=name, start_time=_milliseconds(facts["started"]), tags=tags)
        self._log_params(run.info.run_id, facts["pipeline_params"])
        return str(run.info.run_id)

    def _link_makers(self, parent: str, inputs: Mapping[str, str], reader: str) -> None:
        """Tag the parent with the runs that made `inputs`, and with the runs that made theirs."""
        for path, digest in inputs.items():
            maker = self._find(f"tags.`output.{path}` = '{digest}'")
            if maker is None:
                continue
            self.client.set_tag(reader, f"made_by.{path}", maker.info.run_id)
            stage = maker.data.tags["dvc.stage"]
            known = self.client.get_run(parent).data.tags.get(f"stage.{stage}")
            if known == maker.info.run_id:
                continue
            self.client.set_tag(parent, f"stage.{stage}", maker.info.run_id)
            tags = maker.data.tags
            theirs = {k.removeprefix("input."): v for k, v in tags.items() if k.startswith("input.")}
            self._link_makers(parent, theirs, maker.info.run_id)

    def _describe(self, parent: str) -> None:
        """The parent's note: links to its stages' runs, wherever they were made; MLflow cuts long notes."""
        tags = self.client.get_run(parent).data.tags
        stages = {name.removeprefix("stage."): run for name, run in tags.items() if name.startswith("stage.")}
        lines = [
            f"- [{name}](#/experiments/{self.client.get_run(run).info.experiment_id}/runs/{run})"
            for name, run in list(stages.items())[-LINKED:]
        ]
        if len(stages) > LINKED:
            lines.append(f"- and {len(stages) - LINKED} more, in this run's tags `stage.*`")
        self.client.set_tag(parent, "mlflow.note.content", "Stages, made now or found:\n\n" + "\n".join(lines))

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        flat = [Param(name, text[:6000]) for name, text in flatten(params).items()]
        for start in range(0, len(flat), 100):
            self.client.log_batch(run_id, params=flat[start : start + 100])

    def _log_datasets(self, run_id: str, facts: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(name=path, digest=digest, source_type="dvc", source=json.dumps({"path": path})),
                [InputTag("mlflow.data.context", facts["stage"])],
            )
            for path, digest in _datasets(facts).items()
        ]
        if inputs:
            self.client.log_inputs(run_id, datasets=inputs)

    def _log_files(self, run_id: str, artifacts: Path) -> None:
        """Pictures and texts as files; examples.json, a list of rows, as a table."""
        table = artifacts / "examples.json"
        if table.exists():
            rows = json.loads(table.read_text(encoding="utf-8"))
            if rows:
                columns = {name: [str(row.get(name, "")) for row in rows] for name in rows[0]}
                self.client.log_table(run_id, columns, "examples_table.json")
        self.client.log_artifacts(run_id, str(artifacts))

    def _find(self, query: str) -> Any | None:
        found = self.client.search_runs(self.everywhere, query, max_results=1)
        return found[0] if found else None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"rl": {"lr": 0.1, "ks": [1]}} → {"rl.lr": "0.1", "rl.ks": "[1]"}."""
    out: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return out


def question(facts: Mapping[str, Any]) -> str:
    """What names the run's experiment: a sweep, a recipe, a preset; "" for the pipeline."""
    if facts.get("sweep"):
        return f"sweep {facts['sweep'].rpartition('-')[0]}"
    preset = facts.get("preset")
    return str(facts.get("recipe") or (f"preset {preset}" if preset else ""))


def _datasets(facts: Mapping[str, Any]) -> dict[str, str]:
    """Names of what the stage read and named as data, with their digests."""
    read = {path: digest for path, digest in facts["inputs"].items() if path.startswith("data/")}
    return read | {name: each["digest"] for name, each in facts.get("datasets", {}).items()}


def _tags(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        **_origin(facts),
        "dvc.stage": _label(facts),
        "mathrl.pipeline": facts["pipeline"],
        "mathrl.key": facts["key"],
        **{f"input.{path}": digest for path, digest in facts["inputs"].items()},
    }


def _label(facts: Mapping[str, Any]) -> str:
    """The stage's name; a recipe's step is recipe/step."""
    return str(facts.get("name") or facts["stage"])


def _origin(facts: Mapping[str, Any]) -> dict[str, str]:
    git = facts.get("git", {})
    tags = {
        "mlflow.source.git.commit": git.get("commit", ""),
        "git.dirty": str(git.get("dirty", False)).lower(),
        "mathrl.workspace": facts.get("workspace", ""),
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": f"mathrl.stages.{facts['stage']}",
    }
    if facts.get("prefect_flow_run"):
        tags["prefect.flow_run_id"] = facts["prefect_flow_run"]
    if facts.get("sweep"):
        tags["mathrl.study"] = facts["sweep"]
    return tags


def _name(name: str) -> str:
    return name.replace("@", "_at_")


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
