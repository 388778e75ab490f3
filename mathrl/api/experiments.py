"""Parameters, runs, training, evaluation, comparison and the registry, for programs and notebooks.

Each function works in the project of the current folder, wherever in it that is; relative paths are the caller's.
What trains runs in a process of its own, whose progress goes to stderr.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import mathrl.compose
from mathrl.api.frames import in_project
from mathrl.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError
from mathrl.core.hashing import digest
from mathrl.core.paths import home, main_checkout
from mathrl.core.results import ModelFigures
from mathrl.core.types import Problem, write_problems
from mathrl.curation.inspection import Inspection
from mathrl.params import Params
from mathrl.reports.audit import Audit
from mathrl.tracking.lineage import Back

COMMAND = "from mathrl.cli import main; main()"
Problems = str | Path | Sequence[Problem]


def load_params(*, preset: str | None = None, overrides: Sequence[str] = ()) -> Params:
    """The parameters of the project, with a preset, groups and dotted overrides over them.

    Args:
        preset: A preset, or several as `a+b`, of which the later one wins.
        overrides: Groups and values, such as `["data=gsm8k", "rl.steps=20"]`.

    Raises:
        UserError: a name is unknown, or values do not fit; every error is in the message.

    Examples:
        >>> mathrl.load_params(preset="demo", overrides=["rl.steps=20"]).rl.steps
        20
    """
    with in_project():
        return mathrl.compose.load_params(preset=preset, overrides=overrides)


def inspect(
    file: str | Path, *, fields: Mapping[str, str] | None = None, model: str | None = None, limit: int | None = 50_000
) -> Inspection:
    """What a file of problems holds, as `mathrl inspect` shows it: fields, faults, answers, languages, lengths.

    Args:
        file: A file, a folder of files, or a pattern.
        fields: Fields by name instead of a guess, such as `{"answer_key": "gold"}`.
        model: Model folder or hub id whose tokens count the lengths; None counts characters.
        limit: Maximum number of rows to look at (a seeded choice); None: all.

    Raises:
        UserError: no such file, no row, or no field that looks like a question or an answer.

    Examples:
        >>> mathrl.inspect("data/curated/rl.jsonl", fields={"answer_key": "answers"}).rows
        2048
    """
    from mathrl.cli.inspect import prompting_of
    from mathrl.curation.inspection import inspect_rows

    return inspect_rows(Path(file).expanduser().resolve(), dict(fields or {}), prompting_of(model, None), limit=limit)


def run(
    target: str, *, preset: str | None = None, overrides: Sequence[str] = (), allow_dirty: bool = False
) -> dict[str, Any]:
    """Bring a stage or the whole pipeline up to date, as `mathrl run TARGET` does, and return that command's document.

    Args:
        target: A stage such as `mix` or `rl`, or `pipeline`.
        preset: A preset; with it or overrides the run has a folder of its own under runs/.
        overrides: Groups and values, such as `["model=Qwen/Qwen2.5-0.5B-Instruct", "rl.steps=20"]`.
        allow_dirty: Whether a run with overrides may start from the last commit although files have changed.

    Returns:
        `folder`, where params/, models/ and reports/ of the run are, `ran`, whether anything had to run, `seconds`,
        and for `pipeline` its `results` (reports/summary.json) and the `registered` model.

    Raises:
        UserError: wrong parameters, or a stage that cannot work.

    Examples:
        >>> mathrl.run("pipeline")["registered"]
        {'alias': 'candidate', 'digest': 'f88f7a11b5a6effc', 'name': 'mathrl-chain', 'version': 1}
    """
    words = ["run", target, "--json", *(["--preset", preset] if preset else []), *["--allow-dirty"] * allow_dirty]
    words += [word for override in overrides for word in ("--set", override)]
    done = _child([sys.executable, "-c", COMMAND, *words], f"mathrl run {target}")
    document: dict[str, Any] = json.loads(done)
    return document


def run_stage(stage: str, out: str | Path | None = None, *, overrides: Sequence[str] = (), **inputs: Any) -> Path:
    """Run one stage alone, as dvc.yaml and recipes do: `python -m mathrl.stages.STAGE`.

    Args:
        stage: Such as `sft`, `sample` or `rl`.
        out: Folder to write; None: the stage of the pipeline, with the pipeline's files.
        overrides: Values over params/, such as `["rl.steps=20"]`.
        inputs: The options of the stage, with the names of `python -m mathrl.stages.STAGE --help`: a path, a list of
            paths, or a mapping from labels to paths, such as `models={"sft": "models/sft"}`.

    Returns:
        The folder that was written, the project's if there is no `out`.

    Raises:
        UserError: a missing input, wrong parameters, or a stage that failed.

    Examples:
        >>> mathrl.run_stage("base", "mine/base", data=["data/curated/sft.jsonl"])
        PosixPath('/home/me/project/mine/base')
    """
    words = [sys.executable, "-m", f"mathrl.stages.{stage}"]
    target = Path(out).absolute() if out is not None else main_checkout()
    words += [str(target)] if out is not None else []
    for name, value in inputs.items():
        option = "--" + {"models": "model"}.get(name, name).replace("_", "-")
        for each in _values(value):
            words += [option, each]
    words += [word for override in overrides for word in ("--set", override)]
    _child(words, f"stage {stage}")
    return target


def train(
    start: str | Path,
    problems: Problems,
    out: str | Path,
    *,
    dev: Problems,
    method: Literal["sft", "rl"] = "rl",
    overrides: Sequence[str] = (),
) -> Path:
    """Train a model on problems by SFT or RL, with the project's parameters.

    A run that was stopped and is started again resumes. `mathrl.metrics(out)` has its metrics while and after it
    trains.

    Args:
        start: Folder of the model to start from.
        problems: Problems to train on: a file of curated rows, or a list of `Problem`.
        out: Folder to write, with `model` and `report`.
        dev: Problems to evaluate on while it trains.
        method: `sft` on the problems' solutions, or `rl`.
        overrides: Values over the project's, such as `["rl.steps=20", "rl.group_size=4"]`.

    Returns:
        The folder of the trained model, in Hugging Face's format.

    Raises:
        UserError: no model, no problems, or parameters that do not fit them.

    Examples:
        >>> mathrl.train("models/sft", "data/mixture/train.jsonl", "mine/rl", dev="data/curated/dev.jsonl",
        ...              overrides=["rl.steps=2"])
        PosixPath('/home/me/project/mine/rl/model')
    """
    run_stage(method, out, overrides=overrides, start=start, data=[_file_of(problems)], dev=_file_of(dev))
    return Path(out).absolute() / "model"


def evaluate(
    model: str | Path,
    benchmark: str = "test",
    *,
    problems: Sequence[Problem] | None = None,
    output: str | Path | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
) -> ModelFigures:
    """Evaluate a model folder or hub id on a benchmark, in this process.

    Args:
        model: Hugging Face model folder, or hub id.
        benchmark: `test` (the curated split), a name of the registry such as `gsm8k`, or with `problems` any name.
        problems: Problems to ask instead of a benchmark's.
        output: Folder for summary.json, responses.jsonl and pictures; default: in reports/evaluations.
        preset: A preset over the project's parameters.
        overrides: Values such as `["evaluate.samples=8"]`.

    Returns:
        pass@1 with its interval (`figures.pass_at_1`), pass@k, maj@k, lengths, by level and subject.

    Raises:
        UserError: no such model or benchmark, or every prompt is too long.

    Examples:
        >>> str(mathrl.evaluate("models/rl", "test").pass_at_1)
        '0.980 [0.966, 0.989]'
    """
    from mathrl.core.results import short_name
    from mathrl.reports.evaluation import evaluate_once

    target = Path(output).absolute() if output else None
    with in_project(model) as text:
        params = mathrl.compose.load_params(preset=preset, overrides=overrides)
        target = target or Path("reports/evaluations") / f"{Path(text).name}-{short_name(benchmark)}"
        return evaluate_once(text, benchmark, params, target, problems=problems)


def compare(
    before: str | Path,
    after: str | Path,
    *,
    benchmark: str | None = None,
    metric: str = "pass_at_1",
    common: bool = False,
    preset: str | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Test whether one model is better than another, as `mathrl compare A B` does, and return its document.

    Args:
        before: A model of reports/evaluate by name, a responses.jsonl or a folder with one, a model folder (evaluated
            first), or a recipe's step; commas join the runs of several seeds.
        after: The same.
        benchmark: The benchmark, if the responses cover several.
        metric: `pass_at_1`, `pass_at_K` or `maj_at_K`.
        common: Whether to compare on the problems that all runs answered; else others are an error.
        preset: A preset over the project's parameters.
        overrides: Values such as `["evaluate.confidence=0.9"]`.

    Returns:
        `models` with the figures of both, `comparison` with `difference`, `low`, `high`, `p_value`, `detectable`,
        `shown` and `verdict`, and the differences `by_level` and `by_subject`.

    Raises:
        UserError: a name that means nothing, or evaluations of different problems.

    Examples:
        >>> mathrl.compare("sft", "rl")["comparison"]["verdict"]
        'rl is better than sft: +0.556 [+0.523, +0.589], p < 0.0001, 500 problems'
    """
    from mathrl.reports.find_responses import compare_named

    start = Path.cwd()
    with in_project():
        params = mathrl.compose.load_params(preset=preset, overrides=overrides)
        texts = (str(before), str(after))
        return compare_named(texts, start, params, benchmark=benchmark, metric=metric, common=common)


def health_report(run: str | Path) -> dict[str, Any]:
    """The health of a training run from its metrics, as `mathrl runs health RUN --json` prints it.

    Args:
        run: A stage, a recipe's step, a folder with metrics, or an MLflow run; also one that still trains.

    Returns:
        `colour` (green, yellow, red, or unknown where no rule has its metrics), `steps`, `findings` with rule,
        evidence, cause and remedy, and `not_judged`.

    Raises:
        UserError: no run of that name has metrics.

    Examples:
        >>> mathrl.health_report("rl")["colour"]
        'green'
    """
    from mathrl.reports.find_run import find_training_run

    with in_project(run) as text:
        return find_training_run(text).health()[0]


def audit(run: str | Path, *, model: str | None = None, size: int = 200, seed: int = 0) -> Audit:
    """A sample of graded responses for a person to label, and the grader's error rates from the labels.

    Args:
        run: What `mathrl runs audit` accepts: `evaluate`, `rl`, a recipe's step, a folder or a file.
        model: The model whose responses are audited; None: all.
        size: Number of responses to label, about.
        seed: Seed of the sample; another one is another audit.

    Returns:
        The audit: `audit.open` has what is not labelled yet, `audit.add(key, "y")` keeps a label at once (y, n,
        unsure), `audit.write()` returns the error rates with intervals and writes the page.

    Raises:
        UserError: there are no graded responses.

    Examples:
        >>> mathrl.audit("evaluate", model="rl").write().lines()
    """
    from mathrl.reports.audit import find_responses, open_audit

    with in_project(run) as text:
        opened = open_audit(find_responses(text), model, size, seed)
        opened.folder = opened.folder.absolute()
    return opened


def lineage(model: str) -> Back:
    """The runs and data behind a registered model: `steps`, `edges`, and what nobody made (`gaps()`).

    Args:
        model: NAME (its newest version), NAME:VERSION or NAME@ALIAS.

    Raises:
        UserError: no such registered model.

    Examples:
        >>> [step.stage for step in mathrl.lineage("mathrl-chain").steps]
        ['register', 'evaluate', 'rl', …]
    """
    from mathrl.tracking.client import connect
    from mathrl.tracking.lineage import way_back

    with in_project():
        return way_back(connect(), model)


def promote(
    model: str, *, benchmark: str | None = None, preset: str | None = None, overrides: Sequence[str] = ()
) -> tuple[bool, str]:
    """Make a registered version the champion if it passes the gate, as `mathrl models promote` does.

    Args:
        model: NAME (its candidate), NAME:VERSION or NAME@ALIAS.
        benchmark: The benchmark on which it must beat the champion; default: the first of evaluate.benchmarks.
        preset: A preset over both models' parameters.
        overrides: Values over both models' parameters.

    Returns:
        Whether it is champion now, and the decision with its reasons.

    Raises:
        UserError: no such version, or it cannot be evaluated.

    Examples:
        >>> mathrl.promote("mathrl-chain")
        (True, 'mathrl-chain version 3 promoted on test: …')
    """
    from mathrl.registry import promote as gate
    from mathrl.tracking.client import connect

    with in_project():
        return gate.promote(connect(), model, benchmark, preset, overrides)


def _file_of(problems: Problems) -> Path:
    """The file with the problems; a list is written into one of the project's home, by its content."""
    if isinstance(problems, str | Path):
        return Path(problems).absolute()
    with in_project():
        file = home() / "problems" / f"{digest([problem.to_row() for problem in problems])}.jsonl"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_problems(file, problems)
        return file


def _values(value: Any) -> list[str]:
    """The texts of an option, paths made absolute: a path, several, or {label: path}."""
    if isinstance(value, Mapping):
        return [f"{label}={Path(path).absolute()}" for label, path in value.items()]
    return [str(Path(path).absolute()) for path in ([value] if isinstance(value, str | Path) else value)]


def _child(words: Sequence[str], what: str) -> str:
    """What a program printed that ran in the project, with its errors shown as they come.

    Raises:
        UserError: it ended with an error, whose line is the message.
    """
    errors = list[str]()
    with in_project(), TemporaryFile("w+", encoding="utf-8") as output:
        with subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            for line in child.stderr:
                errors.append(line)
                print(line, end="", file=sys.stderr, flush=True)
        output.seek(0)
        printed = output.read()
    if child.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if child.returncode:
        said = [line.removeprefix("error: ").strip() for line in errors if line.startswith("error: ")]
        said = said if child.returncode == EXIT_USER_ERROR and said else [line.strip() for line in errors[-1:]]
        raise UserError(said[-1] if said else f"{what} ended with exit status {child.returncode}")
    return printed
