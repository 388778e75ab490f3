"""One model on one benchmark outside the pipeline: figures, responses, examples and pictures in a folder."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from mathrl.core.code_values import stage_code
from mathrl.core.environment import world_size
from mathrl.core.errors import EXIT_USER_ERROR, UserError
from mathrl.core.files import release, write_json, write_jsonl, write_text, written_aside
from mathrl.core.hashing import digest, digest_model
from mathrl.core.metrics import progress
from mathrl.core.paths import CURATED_SFT, state_root
from mathrl.core.results import BenchmarkResults, EvaluationSummary, ModelFigures, short_name
from mathrl.core.types import Problem
from mathrl.evaluation.benchmark import Benchmark, EvaluatedModel, prompt_of, read_benchmark
from mathrl.evaluation.summary import summarise
from mathrl.params import Params
from mathrl.params.run import PretrainedModel
from mathrl.planning.final_values import doubts_of, verdict
from mathrl.reports.pictures import draw_accuracy, draw_groups, draw_pass_at_k, examples_markdown, side_by_side
from mathrl.rollout.launch import RankFailed, can_fork_ranks, listen_on_loopback, process_count, run_ranks

SUMMARY = "summary.json"
FIELDS = "fields.json"  # how the rows of benchmarks were read where the fields were guessed


def evaluate_once(
    model: Path | str,
    benchmark: str,
    params: Params,
    output: Path,
    *,
    problems: Sequence[Problem] | None = None,
    examples: Path = CURATED_SFT,
) -> ModelFigures:
    """Evaluate any Hugging Face model folder in `run.processes` processes, or the model at evaluate.endpoint.

    Writes summary.json, responses.jsonl, speed.json (seconds of this machine) and pictures to `output`; fields.json if
    the benchmark's fields were guessed, and endpoint.json in place of speed.json for a model at an endpoint. An
    interrupted evaluation goes on after its last finished chunk, without speed.json. A notebook, and a process that has
    used a GPU, evaluate in one process (`can_fork_ranks`).

    Args:
        problems: Those of the benchmark, if they are known already.
        examples: The split with the worked examples of few-shot prompts.

    Raises:
        UserError: no such benchmark, no model in the folder, or every prompt is too long.
        SystemExit: one of several processes failed, and has said why.
    """
    read = read_benchmark(benchmark, params) if problems is None else Benchmark(list(problems))
    weights = digest_model(Path(model)) if Path(model).is_dir() else str(model)
    key = evaluation_key(weights, benchmark, read.problems, params, examples)
    if params.evaluate.endpoint is not None:  # each of its answers is kept
        _evaluate(model, benchmark, read, params, output, examples)
    else:
        processes = process_count(params.run, fewer=True) if can_fork_ranks() else 1
        with _state_folder(key) as state:
            evaluate = partial(_evaluate, model, benchmark, read, params, output, examples, state)
            if processes > 1:
                listen_on_loopback("evaluate", params)
                _in_ranks(processes, evaluate, state)
            else:
                evaluate()
    return EvaluationSummary.read(output / SUMMARY).models[_label(model)]


def _in_ranks(processes: int, evaluate: Callable[[], None], state: Path) -> None:
    """Raises UserError: that of a process, and SystemExit: one failed otherwise."""
    said = state / "error.txt"

    def work() -> None:
        try:
            evaluate()
        except UserError as error:
            write_text(said, str(error))
            sys.exit(EXIT_USER_ERROR)

    try:
        run_ranks(processes, work, state / "ranks")
    except BaseException as error:
        refused = said.read_text(encoding="utf-8") if said.is_file() else ""
        if refused or not isinstance(error, RankFailed):  # whose message names the log
            said.unlink(missing_ok=True)
            shutil.rmtree(state / "ranks", ignore_errors=True)
        if refused:
            raise UserError(refused) from None
        raise


def _label(model: Path | str) -> str:
    return Path(str(model)).name


def _evaluate(
    model: Path | str,
    benchmark: str,
    read: Benchmark,
    params: Params,
    output: Path,
    examples: Path,
    state: Path | None = None,
) -> None:
    """This process's share of the evaluation; rank 0 writes `output`."""
    from mathrl.evaluation.evaluate_model import evaluate_model  # torch
    from mathrl.planning.run_time import SamplingClock, Speed, write_speed

    problems, label, clock = read.problems, _label(model), SamplingClock()
    params, few_shot = prompt_of(benchmark, params, problems, examples)
    resumed = state is not None and any(state.glob("*.jsonl"))
    with progress(f"evaluate {label} on {benchmark}", len(problems) * params.evaluate.samples) as bar:

        def advance(responses: int) -> None:
            bar.advance(responses)
            clock.tick(responses)

        result = evaluate_model(
            model, benchmark, problems, params, label=label, few_shot=few_shot, state=state, on_progress=advance
        )
    if result is None:
        return
    figures = figures_of(result, params)
    summary = EvaluationSummary(benchmark, {benchmark: BenchmarkResults({label: figures})})
    with written_aside(output) as folder:
        folder.mkdir()
        summary.write(folder / SUMMARY)
        length = figures.response_length
        if result.endpoint is not None:
            write_json(folder / "endpoint.json", result.endpoint)
        elif not resumed:
            write_speed(folder, Speed(str(model), clock.per_second() * length, length, world_size()))
        write_jsonl(folder / "responses.jsonl", result.responses)
        rows = side_by_side(result.responses, [label], params.evaluate.examples, params.run.seed)
        write_text(folder / "examples.md", examples_markdown(rows, [label], benchmark))
        if read.fields:
            write_json(folder / FIELDS, {benchmark: read.to_row()})
        draw(summary, folder)


def evaluation_key(
    weights: str, benchmark: str, problems: Sequence[Problem], params: Params, examples: Path = CURATED_SFT
) -> str:
    """The digest of all that responses and their grades follow from.

    `weights` is the digest of the model's folder, `examples` the split with the worked examples of few-shot prompts.
    """
    _, few_shot = prompt_of(benchmark, params, problems, examples)
    names = ("run", "model", "prompt", "rollout", "evaluate")
    sections = [getattr(params, name).model_dump(mode="json") for name in names]
    rows = [problem.to_row() for problem in (*few_shot, *problems)]
    return digest([stage_code("evaluate")["value"], weights, benchmark, sections, rows])


@contextmanager
def _state_folder(key: str) -> Iterator[Path]:
    """Where the evaluation of this key keeps finished chunks until it ends; while another process makes it, a folder
    that is not kept."""
    folder = state_root() / f"evaluate-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    try:
        yield folder
        if folder.exists():
            shutil.rmtree(folder)
    finally:
        with suppress(OSError):  # it has chunks, or none was begun
            folder.rmdir()
        release(lock)


def check_lengths(
    model: Path | str, benchmark: str, params: Params, problems: Sequence[Problem], typed: Sequence[str]
) -> list[str]:
    """Warnings about lengths that were typed for this evaluation and cut off what the benchmark needs.

    Args:
        model: As it is evaluated, whatever model.base says.

    Raises:
        UserError: a length that nobody typed cuts off more than a tenth of the prompts or answers.
    """
    from mathrl.data.lengths import length_doubts  # transformers, as the next
    from mathrl.models.load import load_tokenizer, resolve_folder

    own, (folder, _) = params.model.base, resolve_folder(model, params.model)
    base = own.model_copy(update={"path": folder}) if own.type == "pretrained" else PretrainedModel(path=folder)
    judged = params.model_copy(update={"model": params.model.model_copy(update={"base": base})})
    judged, few_shot = prompt_of(benchmark, judged, problems)
    tokenizer = load_tokenizer(model, params.model)
    doubts = length_doubts(judged, "evaluate", problems, tokenizer, few_shot, benchmark)
    if own.type == "pretrained" or not Path(folder).exists():  # else it may be a small one of random weights
        doubts += doubts_of(judged, ["evaluate"])
    first = {doubt.key: doubt for doubt in reversed(doubts)}
    refused, warned = verdict(reversed(first.values()), typed)
    if refused:
        raise UserError("; ".join(refused))
    return warned


def figures_of(result: EvaluatedModel, params: Params) -> ModelFigures:
    """The figures of one evaluated model, with the number of its prompts that were too long."""
    figures = summarise(result.rows, params.evaluate)
    return replace(figures, prompts_too_long=result.dropped, verifier=result.verifier)


def draw(summary: EvaluationSummary, folder: Path) -> None:
    """The pictures of the leading benchmark, and those of the others under their names."""
    for benchmark, results in summary.results.items():
        models, end = results.models, "" if benchmark == summary.benchmark else f"_{short_name(benchmark)}"
        draw_accuracy(models, folder / f"accuracy{end}.png", f"Accuracy on {benchmark}")
        draw_pass_at_k(models, folder / f"pass_at_k{end}.png", f"pass@k and maj@k on {benchmark}")
        for by, name in (("level", "levels"), ("subject", "subjects")):
            groups = {model: figures.groups(by) for model, figures in models.items()}
            if any(groups.values()):
                draw_groups(groups, folder / f"{name}{end}.png", f"pass@1 on {benchmark}", by)
