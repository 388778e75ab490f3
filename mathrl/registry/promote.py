"""The registry's gate: a version becomes champion when the evidence says so. Started by `mathrl promote`.

The evidence: a complete lineage, the training data checked against the benchmark's problems, the agreement of
sampler and trainer while training, health, an audit of the grader if register.most_false_positives asks for one, and
the paired test against the present champion on one benchmark.
Each model is asked with its own prompt. The decision with its figures is written on the version, also when it
is a refusal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.hashing import digest, digest_path
from mathrl.core.paths import CURATED_SFT, home
from mathrl.core.results import Comparison
from mathrl.core.types import Problem
from mathrl.evaluation.compare import compare_pair
from mathrl.evaluation.responses import ModelRun, common_problems, read_run
from mathrl.params import Params
from mathrl.registry.evidence import (
    Evidence,
    alignment,
    audited,
    contamination,
    health,
    judge,
    split_of,
    stage_of,
    yardstick,
)
from mathrl.registry.flavour import weights_of
from mathrl.registry.versions import champions, describe, set_champions
from mathrl.reports.evaluation import evaluate_once
from mathrl.tracking.lineage import REMEDY, Back, find_registered, way_back
from mathrl.tracking.upload import flatten


def promote(
    client: Any, text: str, benchmark: str | None = None, preset: str | None = None, overrides: Sequence[str] = ()
) -> tuple[bool, str]:
    """Whether the version that `text` names is now champion, and the decision in a sentence.

    The sampling of evaluate is the version's own for both, the prompt each one's own; a preset and overrides
    go over both. `test` is the champion's held-out split, or the version's own where there is no champion.

    Raises:
        UserError: no such version, or it cannot be evaluated.
    """
    if "@" not in text and ":" not in text:
        text += "@candidate"
    version = find_registered(client, text)
    name, number = version.name, str(version.version)
    back = way_back(client, f"{name}:{number}")
    history = champions(client, name)
    if history[-1:] == [number]:
        raise UserError(f"{name} version {number} is the champion already")
    before = way_back(client, f"{name}:{history[-1]}") if history else None
    notes: list[str] = []
    if missing := back.gaps():
        evidence = Evidence(None, None, None, "unknown", missing)
    else:
        params = own_params(back, back, preset, overrides)
        benchmark = benchmark or params.evaluate.benchmarks[0]
        problems = yardstick(before or back, benchmark, params)
        hits = contamination(back, problems, params.curate)
        bound = params.register_.most_false_positives
        rate = audited(back) if bound is not None else None
        evidence = Evidence(None, hits, alignment(client, back), health(client, back), (), bound, rate)
        if before is not None and not judge(evidence)[0]:  # the test is what takes long
            theirs = own_params(before, back, preset, overrides)
            sides = ((before, theirs), (back, params))
            runs = [_responses(client, side, benchmark, problems, its_params) for side, its_params in sides]
            evidence = replace(evidence, test=_compared(runs, params))
            notes = _prompts_differ(theirs, params)
    against, in_favour = judge(evidence)
    verdict = "refused" if against else "promoted"
    on = f" on {benchmark}" if benchmark else ""
    decision = "\n- ".join([f"{name} version {number} {verdict}{on}:\n", *(against or in_favour), *notes])
    _write_down(
        client,
        back,
        evidence,
        decision,
        {"decision": verdict, "benchmark": benchmark or "", "champion": before.version if before else "none"},
    )
    if not against:
        set_champions(client, name, [*history, number])
    return not against, decision


def rollback(client: Any, name: str) -> str:
    """The champion before the present one is champion again.

    Raises:
        UserError: no such model, or no earlier champion.
    """
    find_registered(client, name)
    history = champions(client, name)
    if len(history) < 2:
        raise UserError(f"{name} has no earlier champion to go back to")
    set_champions(client, name, history[:-1])
    client.set_model_version_tag(name, history[-1], "gate.decision", "rolled back")
    return f"{name}: version {history[-2]} is champion again, version {history[-1]} no longer"


def own_params(back: Back, candidate: Back, preset: str | None, overrides: Sequence[str]) -> Params:
    """The parameters to judge a version with: its own prompt and model, the candidate's evaluate and curate,
    the checkout's machine (run, rollout); over them the preset and the overrides.

    Raises:
        UserError: the lineage is not complete, or what it says no longer fits the schema.
    """
    maker = back.maker()
    if maker is None:
        raise UserError(
            f"{back.name} version {back.version}, the champion, was made by no run that MLflow still has, so "
            f"its prompt is unknown: {REMEDY}; or `mathrl rollback {back.name}`"
        )
    sections = {section: maker.section(section) for section in ("prompt", "model")}
    sections |= {section: stage_of(candidate, section).section(section) for section in ("evaluate", "curate")}
    try:
        return load_params(preset=preset, overrides=overrides, instead=sections)
    except UserError as error:
        raise UserError(f"{back.name} version {back.version}: {error}") from None


def _prompts_differ(champion: Params, candidate: Params) -> list[str]:
    """["each was asked with its own prompt: template plain, now r1_zero"], or nothing."""
    first, second = (flatten(params.prompt.model_dump(mode="json")) for params in (champion, candidate))
    changed = [
        f"{key} {first.get(key)}, now {second.get(key)}"
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]
    return [f"each was asked with its own prompt: {'; '.join(changed)}"] if changed else []


def _compared(runs: Sequence[ModelRun], params: Params) -> Comparison:
    champion, candidate = common_problems(runs, allow_missing=False)
    names, sides = (champion.label, candidate.label), ([champion.rows], [candidate.rows])
    return compare_pair(names, sides, params.evaluate)


def _write_down(client: Any, back: Back, evidence: Evidence, decision: str, tags: Mapping[str, Any]) -> None:
    """The decision as the version's description and its tags gate.*, replacing those of an earlier decision."""
    tags = {**tags, "alignment": evidence.alignment, "contamination_hits": evidence.hits, "health": evidence.health}
    if evidence.test:
        row = evidence.test.to_row()
        tags |= {key: row[key] for key in ("difference", "low", "high", "p_value", "problems")}
    for key in back.tags:
        if key.startswith("gate."):
            client.delete_model_version_tag(back.name, back.version, key)
    for key, value in tags.items():
        text = value if isinstance(value, str) else json.dumps(value)
        client.set_model_version_tag(back.name, back.version, f"gate.{key}", text)
    describe(client, back.name, back.version, decision=decision)


def _responses(client: Any, back: Back, benchmark: str, problems: list[Problem], params: Params) -> ModelRun:
    """The version's responses, kept from an earlier evaluation with the same bytes, problems and parameters, or new."""
    from mlflow.artifacts import download_artifacts

    sections = [
        getattr(params, name).model_dump(mode="json") for name in ("run", "model", "prompt", "rollout", "evaluate")
    ]
    examples = split_of(back, CURATED_SFT) if params.prompt.few_shot else None
    content = [[problem.id, problem.question, list(problem.answers)] for problem in problems]
    key = digest([back.digest, benchmark, content, sections, examples and digest_path(examples)])
    output = Path("reports/evaluations") / f"{back.name}-{back.version}-{benchmark}-{key[:10]}"
    if not (output / "responses.jsonl").is_file():
        target = home() / "registry" / f"{back.name}-{back.version}"
        target.mkdir(parents=True, exist_ok=True)
        folder = weights_of(Path(download_artifacts(f"models:/{back.name}/{back.version}", dst_path=str(target))))
        if digest_path(folder) != back.digest:
            raise UserError(f"{folder}: not the bytes of {back.name} version {back.version}; remove it")
        evaluate_once(folder, benchmark, params, output, problems=problems, examples=examples or CURATED_SFT)
    run = read_run(output / "responses.jsonl", None, benchmark)
    return replace(run, label=f"version {back.version}")
