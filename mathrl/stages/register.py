"""register: the RL model becomes a version in MLflow's registry. `python -m mathrl.stages.register`.

MLflow loads and serves a version by itself (registry.flavour). A model whose bytes are registered already keeps its
version; the alias moves to it. Writes reports/registered.json, and for MLflow the report of `mathrl runs report` and a
card, which is also the version's description.
"""

from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.core.files import write_json, write_text
from mathrl.core.hashing import digest_path
from mathrl.core.paths import CURATED_SFT
from mathrl.core.results import EvaluationSummary
from mathrl.data.templates import few_shot_examples
from mathrl.params.load import parse_yaml
from mathrl.params.run import Prompt
from mathrl.registry.versions import Usage, describe, find_version, register_version
from mathrl.reports.html import model_card, pipeline_material, write_report
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.tracking.client import connect
from mathrl.tracking.upload import Upload

MODEL, SUMMARY, REGISTERED = Path("models/rl"), Path("reports/summary.json"), Path("reports/registered.json")
REPORT, CARD = "report.html", "model_card.md"


def work(run: StageRun) -> None:
    wanted, digest, summary = run.params.register_, digest_path(MODEL), EvaluationSummary.read(SUMMARY)
    accuracy = summary.models["rl"].pass_at_1.mean
    client = connect()
    version = find_version(client, wanted.name, digest)
    if version is None:
        run_id, _ = Upload(client).start(run.record)
        tags = {
            "mathrl.digest": digest,
            "dvc.md5": dvc_md5(str(MODEL)),
            "mathrl.pipeline": run.record.pipeline,
            "git.commit": run.record.commit,
            "pass_at_1": f"{accuracy:.4f}",
            "verdict": summary.verdict,
        }
        version = register_version(client, wanted.name, run_id, MODEL, tags, _usage(run))
    client.set_registered_model_alias(wanted.name, wanted.alias, version)
    # Kept with the MLflow run and not a DVC output: its figures belong to other stages.
    material = pipeline_material(Path.cwd())
    write_report(material, run.artifacts / REPORT, load_params())
    card = model_card(f"{wanted.name} version {version}", f"{wanted.name}:{version}", digest, material)
    write_text(run.artifacts / CARD, card)
    describe(client, wanted.name, version, card=card)
    entry = {"name": wanted.name, "version": int(version), "alias": wanted.alias, "digest": digest}
    write_json(REGISTERED, entry)
    run.summary({"pass_at_1": accuracy, "version": float(version)})


def _usage(run: StageRun) -> Usage:
    """How the pipeline asks the model; its parameters, which the model's bytes depend on, are in the record."""
    sections = run.record.pipeline_params
    prompt = Prompt.model_validate(sections["prompt"])
    examples = few_shot_examples(prompt, CURATED_SFT) if prompt.few_shot else ()
    return Usage(prompt, sections["evaluate"]["max_tokens"], examples)


def dvc_md5(path: str) -> str:
    """The digest under which DVC keeps an output, from dvc.lock; empty where the stage ran outside DVC."""
    lock = Path("dvc.lock")
    locked: dict[str, Any] = parse_yaml(lock.read_text(), "dvc.lock") if lock.exists() else {}
    for stage in locked.get("stages", {}).values():
        for out in stage.get("outs", []):
            if out["path"] == path:
                return str(out["md5"])
    return ""


if __name__ == "__main__":
    main("register", work, inputs=[MODEL, SUMMARY], outputs=[REGISTERED])
