"""The registry's gate: a version becomes champion when the evidence says so. Started by `mathrl promote`.

The evidence: the paired test against the present champion on one benchmark, the training data checked against
that benchmark's problems, the agreement of sampler and trainer while training, and health. The decision with
its figures is written on the version, also when it is a refusal.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest, digest_path
from mathrl.core.nouns import Problem
from mathrl.core.places import home
from mathrl.core.problems import read_problems
from mathrl.data.decontaminate import EvaluationIndex, find_hits
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.paired import Comparison
from mathrl.evaluation.responses import ModelRun, common_problems, read_run
from mathrl.evaluation.runs import compare_runs
from mathrl.evaluation.summary import values_of
from mathrl.params import Params
from mathrl.params.data import Decontaminate
from mathrl.stages.evaluate import evaluate_once
from mathrl.tracking.lineage import Back, find_registered, way_back
from mathrl.tracking.registry import champions, set_champions

ALIGNED = 1.05
ALIGNMENT = "rollout/logprob_alignment"
TRAINED = ("data/curated/sft.jsonl", "data/curated/rl.jsonl")


@dataclass(frozen=True)
class Evidence:
    """What the gate judges. Example: Evidence(Comparison(…), hits=0, alignment=1.01, health="unknown").

    `test` is None without a champion; `hits` None where the training data could not be checked; `alignment`
    is the largest of the run's steps, None where nothing was rolled out.
    """

    test: Comparison | None
    hits: int | None
    alignment: float | None
    health: str


def judge(evidence: Evidence) -> tuple[list[str], list[str]]:
    """(why not, what was found), in sentences; no reason against is a promotion.

    >>> judge(Evidence(None, 0, 1.2, "green"))[0]
    ['log-prob alignment 1.200 is above 1.05: sampler and trainer are not the same model']
    """
    against: list[str] = []
    found: list[str] = []
    if evidence.test is None:
        found.append("there is no champion yet: the first is taken without a comparison")
    else:
        better = evidence.test.shown and evidence.test.difference > 0
        (found if better else against).append(evidence.test.verdict())
    if evidence.hits is None:
        against.append("the training data could not be checked against the benchmark: this version's curated "
                       "files are not here; bring them back with git checkout, dvc checkout")  # fmt: skip
    elif evidence.hits:
        against.append(f"{evidence.hits} training problems share text with the benchmark: decontaminate them")
    else:
        found.append("no training problem shares text with the benchmark")
    if evidence.alignment is None:
        found.append("no roll-outs in its lineage, so no log-prob alignment")
    elif not evidence.alignment <= ALIGNED:  # nan is a refusal, too
        against.append(f"log-prob alignment {evidence.alignment:.3f} is above {ALIGNED}: sampler and trainer "
                       "are not the same model")  # fmt: skip
    else:
        found.append(f"log-prob alignment at most {evidence.alignment:.3f}")
    if evidence.health == "red":
        against.append("its run's health is red")
    else:
        found.append(f"health {evidence.health}")
    return against, found


def promote(client: Any, text: str, benchmark: str, params: Params) -> tuple[bool, str]:
    """Whether the version that `text` names is now champion, and the decision in a sentence.

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
    problems = benchmark_problems(benchmark, params)
    test = None
    if history:
        champion = find_registered(client, f"{name}:{history[-1]}")
        runs = [_responses(client, each, benchmark, problems, params) for each in (champion, version)]
        runs = common_problems(runs, allow_missing=False)
        values = [[values_of(run.rows, "pass_at_1")] for run in runs]
        how, seed = params.evaluate, params.run.seed
        test = compare_runs(f"version {history[-1]}", f"version {number}", *values,
                            confidence=how.confidence, resamples=how.resamples, seed=seed)  # fmt: skip
    evidence = Evidence(
        test, contamination(back, problems, params), _alignment(client, back), _health(client, back)
    )
    against, found = judge(evidence)
    verdict = "refused" if against else "promoted"
    said = f"{name} version {number} {verdict} on {benchmark}: " + "; ".join(against or found)
    before = history[-1] if history else "none"
    tags: dict[str, Any] = {"decision": verdict, "benchmark": benchmark, "champion": before,
                            "alignment": evidence.alignment, "contamination_hits": evidence.hits,
                            "health": evidence.health}  # fmt: skip
    tags |= (
        {key: test.to_row()[key] for key in ("difference", "low", "high", "p_value", "problems")}
        if test
        else {}
    )
    for key, value in tags.items():
        client.set_model_version_tag(
            name, number, f"gate.{key}", value if isinstance(value, str) else json.dumps(value)
        )
    client.update_model_version(name, number, description=said)
    if not against:
        set_champions(client, name, [*history, number])
    return not against, said


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


def contamination(back: Back, problems: list[Problem], params: Params) -> int | None:
    """How many curated training problems share text with the benchmark; None when their files are not here.

    As curation does it: problems of one generator share its phrases, there only the same question counts.
    """
    wanted = {path: value for step in back.steps for path, value in step.outputs.items() if path in TRAINED}
    if not wanted or any(not Path(p).is_file() or digest_path(Path(p)) != v for p, v in wanted.items()):
        return None
    how = params.curate.decontaminate or Decontaminate()
    index = EvaluationIndex(how.ngram)
    for problem in problems:
        index.add_problem(problem)
    questions = {" ".join(problem.question.split()) for problem in problems}
    generated = {each.name for each in params.curate.sources if each.type == "generated"}
    count = 0
    for problem in (each for path in wanted for each in read_problems(Path(path))):
        own = problem.source in generated and not how.within_generator
        skip = frozenset(p.id for p in problems if p.source == problem.source) if own else frozenset()
        ((_, hit),) = find_hits([problem], index, min_share=how.min_share, skip=skip)
        count += hit is not None or " ".join(problem.question.split()) in questions
    return count


def _alignment(client: Any, back: Back) -> float | None:
    values = [m.value for step in back.steps for m in client.get_metric_history(step.run, ALIGNMENT)]
    return max(values, key=lambda value: (value != value, value), default=None)


def _health(client: Any, back: Back) -> str:
    told = {client.get_run(step.run).data.tags.get("health", "unknown") for step in back.steps}
    return "red" if "red" in told else ", ".join(sorted(told - {"unknown"})) or "unknown"


def _responses(
    client: Any, version: Any, benchmark: str, problems: list[Problem], params: Params
) -> ModelRun:
    """The version's responses, kept from a time with the same bytes, problems and parameters, or new."""
    from mlflow.artifacts import download_artifacts

    sections = [getattr(params, each).model_dump(mode="json") for each in
                ("run", "model", "prompt", "rollout", "evaluate")]  # fmt: skip
    asked = [[problem.id, problem.question, list(problem.answers)] for problem in problems]
    key = digest([version.tags.get("mathrl.digest", ""), benchmark, asked, sections])
    output = Path("reports/evaluations") / f"{version.name}-{version.version}-{benchmark}-{key[:10]}"
    if not (output / "responses.jsonl").is_file():
        target = home() / "registry" / f"{version.name}-{version.version}"
        target.mkdir(parents=True, exist_ok=True)
        folder = Path(download_artifacts(f"models:/{version.name}/{version.version}", dst_path=str(target)))
        if digest_path(folder) != version.tags.get("mathrl.digest"):
            raise UserError(f"{folder}: not the bytes of {version.name} version {version.version}; remove it")
        evaluate_once(folder, benchmark, params, output)
    run = read_run(output / "responses.jsonl", None, benchmark)
    return ModelRun(f"version {version.version}", run.where, run.benchmark, run.rows, run.questions)
