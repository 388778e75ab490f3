"""The lengths of a run against its data, before it runs: where the texts and the tokenizer are on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mathrl.compose import load_params
from mathrl.compose.derived import DataTokens
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.problems import read_problems
from mathrl.core.types import Problem
from mathrl.data.difficulty import seeded_subset
from mathrl.data.sources import resolve_source
from mathrl.params import Params
from mathrl.params.data import Curate
from mathrl.params.evaluate import TEST
from mathrl.params.final_values import Doubt, verdict
from mathrl.params.schema import READS

WORKED = 0.5  # share of the problems with solutions from which on these say how long responses are
ROWS = 2000  # that are counted
SPLITS = {"sft": "sft", "difficulty": "rl", "rl": "rl", "evaluate": "test"}  # what the stages prompt with
Splits = dict[str, list[Problem]]


def judge_lengths(params: Params, stages: Sequence[str], typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the stages would say of their lengths (data/lengths.py): a sentence per refused one and per typed one.

    Nothing where it cannot be known: data/curated is out of date and a source is no local file, or the model's
    tokenizer is not on this machine.
    """
    try:
        doubts = list(_doubts(params, stages))
    except UserError:  # of the model or of the data: it is the stage's to say
        return [], []
    return verdict({doubt.key: doubt for doubt in reversed(doubts)}.values(), typed)


def data_tokens(params: Params) -> DataTokens | None:
    """Tokens of the prompts and solutions that rl would have; None where they cannot be known (see `judge_lengths`)."""
    from mathrl.data.lengths import answer_lengths, nearly_all
    from mathrl.data.templates import prompt_lengths

    try:
        texts = _texts(params, {"rl"})
    except UserError:
        return None
    problems = texts.splits.get("rl", []) if texts else []
    if texts is None or not problems:
        return None
    chosen = seeded_subset(problems, ROWS, params.run.seed)
    prompts = prompt_lengths(chosen, params.prompt, texts.tokenizer, texts.shots)
    worked = [problem for problem in chosen if problem.solution]
    known = len(worked) >= WORKED * len(chosen)
    return DataTokens(
        rows=len(chosen),
        prompts_p95=nearly_all(prompts),
        longest_prompt=max(prompts),
        solutions_p95=nearly_all(answer_lengths(worked, texts.tokenizer)) if known else None,
    )


class _Texts(NamedTuple):
    splits: Splits
    shots: list[Problem]
    tokenizer: Any


def _texts(params: Params, splits: set[str]) -> _Texts | None:
    """The problems of the splits, the worked examples before a question, and the model's tokenizer, if they are here.

    Raises:
        UserError: of the model or of the data.
    """
    folder = _model_folder(params)
    if folder is None or not splits:
        return None
    problems = _curated(params, splits) or _sources(params)
    shots = [problem for problem in problems.get("sft", ()) if problem.solution][: params.prompt.few_shot]
    if not problems or len(shots) < params.prompt.few_shot:
        return None
    from mathrl.models.load import load_tokenizer  # transformers

    return _Texts(problems, shots, load_tokenizer(folder, params.model))


def _doubts(params: Params, stages: Sequence[str]) -> Iterator[Doubt]:
    idle = {"sft"} if not params.sft.steps else set()
    idle |= {"evaluate"} if TEST not in params.evaluate.benchmarks else set()
    judged = [stage for stage in stages if stage in SPLITS and stage not in idle]
    texts = _texts(params, {SPLITS[stage] for stage in judged})
    if texts is None:
        return
    from mathrl.data.lengths import length_doubts  # transformers

    for stage in judged:
        examples = texts.shots if stage != "sft" else ()
        yield from length_doubts(params, stage, texts.splits.get(SPLITS[stage], ()), texts.tokenizer, examples)


def _model_folder(params: Params) -> Path | None:
    """The folder of the pretrained model on this machine: its own, or the hub's cache."""
    base = params.model.base
    if base.type != "pretrained":
        return None
    if Path(base.path).is_dir():
        return Path(base.path)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file: Any = try_to_load_from_cache(base.path, "tokenizer_config.json", revision=base.revision)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def _curated(params: Params, splits: set[str]) -> Splits:
    """The curated splits, if `curate` with these parameters would have nothing to do."""
    from tasks.repro import environment, is_up_to_date  # for this alone

    root = main_checkout()
    files = {split: root / "data" / "curated" / f"{split}.jsonl" for split in {*splits, "sft"}}
    present = load_params(root / "params")
    same = all(getattr(present, section) == getattr(params, section) for section in READS["curate"])
    if not same or not all(file.exists() for file in files.values()):
        return {}
    if not is_up_to_date(root, "curate", environment(root)):
        return {}
    return {split: read_problems(file) for split, file in files.items()}


def _sources(params: Params) -> Splits:
    """A seeded choice of the rows of the sources, by split, if all of them are local files."""
    from mathrl.data.reading import read_source

    curate: Curate = params.curate
    resolved = [resolve_source(source, curate.data_folder) for source in curate.sources]
    if not all(source.files for source in resolved):
        return {}
    splits: Splits = {}
    for source in resolved:
        drawn = replace(source, limit=min(source.limit or ROWS, ROWS))
        rows = [row for row in read_source(drawn, params.run.seed) if isinstance(row, Problem)]
        splits.setdefault(source.split, []).extend(rows)
    for split, share in (("sft", curate.sft_share), ("test", curate.test_share)):
        if share and split not in splits:  # a seeded part of the rl rows
            splits[split] = splits.get("rl", [])
    return splits
