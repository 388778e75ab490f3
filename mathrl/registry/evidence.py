"""What the registry's gate judges: the evidence about a version, gathered from its lineage.

Used by mathrl.registry.promote. Files are in_favour by digest, so that a version of a worktree under runs/, with
other data than the checkout's, is judged by its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.hashing import digest_path
from mathrl.core.paths import AUDITS, CURATED_TEST, main_checkout
from mathrl.core.problems import read_problems
from mathrl.core.results import Comparison, Interval
from mathrl.core.types import Problem
from mathrl.data.decisions import decisions_of
from mathrl.data.decontaminate import EvaluationIndex, find_hits
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.health.mismatch import ALIGNMENT, CANARY, LAG
from mathrl.params import Params
from mathrl.params.data import Curate, Decontaminate
from mathrl.params.evaluate import TEST
from mathrl.tracking.lineage import REMEDY, Back, Step

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
        against.append(f"its health is {evidence.health}: `mathrl health RUN` says why and what helps")
    elif evidence.health == "unknown":
        against.append("the run that made it has no health in MLflow: `mathrl sync` uploads what was kept back")
    else:
        in_favour.append(f"health {evidence.health}")
    if (bound := evidence.most_false_positives) is not None:
        if evidence.audit is None:
            against.append("no finished audit of its evaluation's verdicts: `mathrl audit RUN` on its responses")
        else:
            shown = f"the grader's false-positive rate by audit is {evidence.audit}"
            (in_favour if evidence.audit.high <= bound else against).append(f"{shown}, its bound {bound}")
    return against, in_favour


def audited(back: Back) -> Interval | None:
    """The false-positive rate of the audit, of those of this version's evaluations, with the most labels."""
    evaluated = {digest for step in back.steps if step.stage == "evaluate" for digest in step.outputs.values()}
    audits = [read_json(file) for file in sorted((main_checkout() / AUDITS).glob("*/audit.json"))]
    rates = [audit for audit in audits if evaluated & {*audit["outputs"]} and audit["false_positives"] is not None]
    most = max(rates, key=lambda audit: int(audit["labelled"]), default=None)
    return Interval(**most["false_positives"]) if most is not None else None


def contamination(back: Back, problems: list[Problem], settings: Curate) -> int | None:
    """How many problems that the version was trained on share text with the benchmark; None when their files
    are not here.

    As curation does it: problems of one generator share its phrases, there only the same question counts.
    `settings` is the section with which they were curated.
    """
    read = {item for step in back.steps for item in step.inputs.items() if item[0] in TRAINED}
    files = [located(back, path, digest) for path, digest in sorted(read)]
    if not files or None in files:
        return None
    clean = settings.decontaminate or Decontaminate()
    index = EvaluationIndex(clean.ngram, clean.share, decisions_of(clean))
    for problem in problems:
        index.add_problem(problem)
    questions = {" ".join(problem.question.split()) for problem in problems}
    generated = {source.name for source in settings.sources if source.type == "generated"}
    exempt = frozenset() if clean.within_generator else generated
    skips = {source: frozenset(p.id for p in problems if p.source == source) for source in exempt}
    trained = (row for file in files if file for row in read_problems(file))
    return sum(
        bool(hit and hit.dropped(clean.min_share)) or " ".join(problem.question.split()) in questions
        for problem, hit in find_hits(trained, index, skips=skips)
    )


def located(back: Back, path: str, digest: str) -> Path | None:
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
    file = located(back, str(path), digest)
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
