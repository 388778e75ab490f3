"""The registry's gate: a version becomes champion when the evidence says so. Started by `mathrl models promote`.

The evidence: a complete lineage, the training data checked against the benchmark's problems, the agreement of
sampler and trainer while training, health, an audit of the grader if register.most_false_positives asks for one, and
the paired test against the present champion on one benchmark.
Each model is asked with its own prompt. The decision with its figures is written on the version, also when it
is a refusal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.hashing import digest_path
from mathrl.core.markdown import code
from mathrl.core.paths import AUDITS, CURATED_SFT, CURATED_TEST, home, main_checkout
from mathrl.core.results import Comparison, Interval
from mathrl.core.types import Problem, read_problems
from mathrl.curation.decisions import decisions_of
from mathrl.curation.decontaminate import EvaluationIndex, find_hits
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.compare import compare_pair
from mathrl.evaluation.responses import ModelRun, common_problems, read_run
from mathrl.health.mismatch import ALIGNMENT, CANARY, LAG
from mathrl.params import Params
from mathrl.params.data import Curate, Decontaminate
from mathrl.params.evaluate import TEST
from mathrl.registry.versions import champions, describe, set_champions, weights_of
from mathrl.reports.evaluation import evaluate_once, evaluation_key
from mathrl.tracking.lineage import REMEDY, Back, Step, find_registered, way_back
from mathrl.tracking.upload import flatten

ALIGNED = 1.05
TRAINED = ("data/curated/sft.jsonl", "data/curated/rl.jsonl")
FIND = "`mathrl run curate` with the --preset and --set of that run brings them back from DVC's cache"


@dataclass(frozen=True)
class Evidence:
    """What the gate judges. Example: Evidence(Comparison(…), hits=0, alignment=1.01, health="green").

    `test` is None without a champion; `hits` None where the training data could not be checked; `alignment`
    is the largest of the run's steps, None where nothing was rolled out; `health` begins with red where any
    run of the lineage is, else it is that of the run that made the model, with the rules that gave it;
    "unknown" where none did; `missing` is what no run made. `audit` is the grader's false-positive rate by a
    person's audit of the version's evaluation, asked for where `most_false_positives` is a bound.
    """

    test: Comparison | None
    hits: int | None
    alignment: float | None
    health: str
    missing: Sequence[str] = ()
    most_false_positives: float | None = None
    audit: Interval | None = None


def judge(evidence: Evidence) -> tuple[list[str], list[str]]:
    """(reasons against, reasons in favour), in sentences; without a reason against, the version is promoted.

    >>> judge(Evidence(None, 0, 1.2, "green"))[0]
    ['log-prob alignment 1.200 is above 1.05: sampler and trainer are not the same model']
    """
    if evidence.missing:  # what is known of such a version may be of another model's making
        return [f"its lineage is not complete, no run in MLflow made {', '.join(evidence.missing)}: {REMEDY}"], []
    against: list[str] = []
    in_favour: list[str] = []
    if evidence.test is None:
        in_favour.append("there is no champion yet: the first is taken without a comparison")
    else:
        better = evidence.test.shown and evidence.test.difference > 0
        (in_favour if better else against).append(evidence.test.verdict())
    if evidence.hits is None:
        against.append(
            "the training data could not be checked against the benchmark: the curated files of "
            f"its run are neither here nor under runs/; {FIND}"
        )
    elif evidence.hits:
        against.append(f"{evidence.hits} training problems share text with the benchmark: decontaminate them")
    else:
        in_favour.append("no training problem shares text with the benchmark")
    if evidence.alignment is None:
        in_favour.append("no rollouts in its lineage, so no log-prob alignment")
    elif not evidence.alignment <= ALIGNED:  # nan is a refusal, too
        against.append(
            f"log-prob alignment {evidence.alignment:.3f} is above {ALIGNED}: sampler and trainer "
            "are not the same model"
        )
    else:
        in_favour.append(f"log-prob alignment at most {evidence.alignment:.3f}")
    if evidence.health.startswith("red"):
        against.append(f"its health is {evidence.health}: `mathrl runs health RUN` says why and what helps")
    elif evidence.health == "unknown":
        against.append("the run that made it has no health in MLflow: `mathrl runs sync` uploads what was kept back")
    else:
        in_favour.append(f"health {evidence.health}")
    if (bound := evidence.most_false_positives) is not None:
        if evidence.audit is None:
            against.append("no finished audit of its evaluation's verdicts: `mathrl runs audit RUN` on its responses")
        else:
            shown = f"the grader's false-positive rate by audit is {evidence.audit}"
            (in_favour if evidence.audit.high <= bound else against).append(f"{shown}, its bound {bound}")
    return against, in_favour


def audited_rate(back: Back) -> Interval | None:
    """The false-positive rate of the audit, of those of this version's evaluations, with the most labels."""
    evaluated = {digest for step in back.steps if step.stage == "evaluate" for digest in step.outputs.values()}
    audits = [read_json(file) for file in sorted((main_checkout() / AUDITS).glob("*/audit.json"))]
    rates = [audit for audit in audits if evaluated & {*audit["outputs"]} and audit["false_positives"] is not None]
    most = max(rates, key=lambda audit: int(audit["labelled"]), default=None)
    return Interval(**most["false_positives"]) if most is not None else None


def contamination(back: Back, problems: list[Problem], settings: Curate) -> int | None:
    """How many problems that the version was trained on share text with the benchmark; None when their files
    are not here.

    As curation does it: problems of one generator or template share phrases, there only the same question counts.
    `settings` is the section with which they were curated.
    """
    read = {item for step in back.steps for item in step.inputs.items() if item[0] in TRAINED}
    files = [locate(back, path, digest) for path, digest in sorted(read)]
    if not files or None in files:
        return None
    clean = settings.decontaminate or Decontaminate()
    index = EvaluationIndex(clean.ngram, clean.share, decisions_of(clean))
    for problem in problems:
        index.add_problem(problem)
    questions = {" ".join(problem.question.split()) for problem in problems}
    alike = settings.not_compared_within()
    skips = {source: frozenset(p.id for p in problems if p.source == source) for source in alike}
    filled = (file for file in files if file and file.stat().st_size)  # without SFT its split is empty
    trained = (row for file in filled for row in read_problems(file))
    return sum(
        bool(hit and hit.is_dropped(clean.min_share)) or " ".join(problem.question.split()) in questions
        for problem, hit in find_hits(trained, index, skips=skips)
    )


def locate(back: Back, path: str, digest: str) -> Path | None:
    """A file of these bytes at `path` in the checkout, in a worktree of it, or where a run of the lineage
    worked."""
    root = main_checkout()
    folders = [root, *(Path(step.workspace) for step in back.steps if step.workspace), *root.glob("runs/*")]
    files = (folder / path for folder in dict.fromkeys(folders))
    return next((file for file in files if file.is_file() and digest_path(file) == digest), None)


def yardstick(back: Back, benchmark: str, params: Params) -> list[Problem]:
    """The benchmark's problems; `test` is the split that this version was evaluated on.

    Raises:
        UserError: no such benchmark, or its file is no longer here.
    """
    return benchmark_problems(benchmark, params, split_of(back, CURATED_TEST) if benchmark == TEST else CURATED_TEST)


def split_of(back: Back, path: Path) -> Path:
    """A curated split as it was when the version was evaluated.

    Raises:
        UserError: it is no longer here.
    """
    digest = stage_of(back, "evaluate").inputs.get(str(path), "")
    file = locate(back, str(path), digest)
    if file is None:
        raise UserError(
            f"{path} of {back.name} version {back.version} (digest {digest or 'unknown'}) is neither here "
            f"nor under runs/; {FIND}" + ("; or name a benchmark (--benchmark gsm8k)" * (path == CURATED_TEST))
        )
    return file


def stage_of(back: Back, stage: str) -> Step:
    """The run of a stage that is nearest to the model.

    Raises:
        UserError: there is none.
    """
    for step in back.steps:
        if step.stage == stage:
            return step
    raise UserError(f"{back.name} version {back.version} has no {stage} in its lineage: {REMEDY}")


def alignment(client: Any, back: Back) -> float | None:
    """The largest log-prob alignment of any step; where older weights sampled the rollouts, that of the
    probe: the policy's own change is in the other."""
    values: list[float] = []
    for step in back.steps:
        alignments, probe, lag = (
            {point.step: float(point.value) for point in client.get_metric_history(step.run, name)}
            for name in (ALIGNMENT, CANARY, LAG)
        )
        values += [probe.get(at, float("nan")) if lag.get(at) else value for at, value in alignments.items()]
    return max(values, key=lambda value: (value != value, value), default=None)


def health(client: Any, back: Back) -> str:
    """Such as "green", "yellow (rl: truncated, flat)"."""
    tags = {step.run: client.get_run(step.run).data.tags for step in back.steps}
    red = [step for step in back.steps if tags[step.run].get("health") == "red"]
    step = red[0] if red else back.maker()
    if step is None or "health" not in tags[step.run]:
        return "unknown"
    rules = [key.removeprefix("health.") for key in tags[step.run] if key.startswith("health.")]
    reasons = f" ({step.stage}: {', '.join(sorted(rules))})" if rules else ""
    return f"{tags[step.run]['health']}{reasons}"


def promote(
    client: Any, text: str, benchmark: str | None = None, preset: str | None = None, overrides: Sequence[str] = ()
) -> tuple[bool, str]:
    """Whether the version that `text` names is now champion, and the decision in a sentence.

    The sampling of evaluate is the version's own for both, the prompt each one's own; a preset and overrides
    go over both. `test` is the champion's held-out split, or the version's own where there is no champion.

    Raises:
        UserError: no such version, or it cannot be evaluated.
    """
    if not any(mark in text.removeprefix("models:/") for mark in "@:/"):
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
        rate = audited_rate(back) if bound is not None else None
        evidence = Evidence(None, hits, alignment(client, back), health(client, back), (), bound, rate)
        if before is not None and not judge(evidence)[0]:  # the test is what takes long
            theirs = own_params(before, back, preset, overrides)
            sides = ((before, theirs), (back, params))
            runs = [_responses(side, benchmark, problems, its_params) for side, its_params in sides]
            evidence = replace(evidence, test=_compare_runs(runs, params))
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
            f"its prompt is unknown: {REMEDY}; or `mathrl models rollback {back.name}`"
        )
    sections = {section: maker.section(section) for section in ("prompt", "model")}
    sections |= {section: stage_of(candidate, section).section(section) for section in ("evaluate", "curate")}
    try:
        return load_params(preset=preset, overrides=overrides, instead=sections)
    except UserError as error:
        raise UserError(f"{back.name} version {back.version}: {error}") from None


def _prompts_differ(champion: Params, candidate: Params) -> list[str]:
    """["each was asked with its own prompt: template `plain`, now `r1_zero`"], or nothing."""
    first, second = (flatten(params.prompt.model_dump(mode="json")) for params in (champion, candidate))
    changed = [
        f"{key} {code(str(first.get(key)))}, now {code(str(second.get(key)))}"
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]
    return [f"each was asked with its own prompt: {'; '.join(changed)}"] if changed else []


def _compare_runs(runs: Sequence[ModelRun], params: Params) -> Comparison:
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


def _responses(back: Back, benchmark: str, problems: list[Problem], params: Params) -> ModelRun:
    """The version's responses, kept from an earlier evaluation with the same bytes, problems and parameters, or new."""
    from mlflow.artifacts import download_artifacts

    examples = split_of(back, CURATED_SFT) if params.prompt.few_shot else CURATED_SFT
    key = evaluation_key(back.digest, benchmark, problems, params, examples)
    output = Path("reports/evaluations") / f"{back.name}-{back.version}-{benchmark}-{key[:10]}"
    if not (output / "responses.jsonl").is_file():
        target = home() / "registry" / f"{back.name}-{back.version}"
        target.mkdir(parents=True, exist_ok=True)
        folder = weights_of(Path(download_artifacts(f"models:/{back.name}/{back.version}", dst_path=str(target))))
        if digest_path(folder) != back.digest:
            raise UserError(f"{folder}: not the bytes of {back.name} version {back.version}; remove it")
        evaluate_once(folder, benchmark, params, output, problems=problems, examples=examples)
    run = read_run(output / "responses.jsonl", None, benchmark)
    return replace(run, label=f"version {back.version}")
