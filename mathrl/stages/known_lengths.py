"""A run or a recipe against its data, before it runs: lengths, and solutions for SFT, where the texts can be read.

A dry run and `mathrl plan` look at what is on this machine; a flow asks before its first stage, by
`python -m mathrl.stages.known_lengths [--curated] [--recipe NAME | STAGE …]`, and reads the benchmarks of
`evaluate` from the hub too: what `evaluate` would refuse after hours of training is refused before any.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mathrl.compose import load_params
from mathrl.compose.derived import DataTokens
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError, exit_on_user_error
from mathrl.core.paths import typed_overrides
from mathrl.core.types import Problem, read_problems
from mathrl.data.difficulty import seeded_subset
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.params import Params
from mathrl.params.data import Curate, HubSource, Source
from mathrl.params.evaluate import TEST
from mathrl.params.generators import GeneratedSource
from mathrl.params.load import FOLDER
from mathrl.params.messages import Doubt
from mathrl.params.recipe_steps import OnProblems, Recipe
from mathrl.planning.final_values import verdict
from mathrl.reading.registry import NORMALISED, find
from mathrl.reading.sources import resolve_benchmark, resolve_source
from mathrl.recipes.recipe import curate_of, load_recipe, step_params

# What the stages prompt with.
SPLITS = {"sft": "sft", "difficulty": "rl", "rl": "rl", "sample": "rl", "evaluate": TEST}
CURATED = Path("data/curated")
WORKED = 0.5  # share of the problems with solutions from which on these say how long responses are
FIRST = 200  # rows of a file that say whether it has solutions
Splits = dict[str, list[Problem]]


class Judged(NamedTuple):
    """A sentence per refused length, source without solutions for sft, unreadable benchmark and tokenizer, and per
    typed length.

    `unknown`: some problems or a tokenizer could not be read.
    """

    refused: list[str]
    warned: list[str]
    unknown: bool


class Asked(NamedTuple):
    """A stage to judge, with its parameters; `curated` is the folder of its splits, None if they are not made yet."""

    stage: str
    params: Params
    curated: Path | None
    step: str = ""
    """Of a recipe."""


@dataclass
class _Reader:
    """Reads each file and each tokenizer once; what the hub has only if `fetch`."""

    fetch: bool
    unknown: bool = False
    unreadable: list[str] = field(default_factory=list)
    """Why a benchmark or a tokenizer cannot be read."""
    splits: dict[str, Splits] = field(default_factory=dict)
    tokenizers: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self, params: Params) -> Any:
        """That of the pretrained model; None if it is not here or cannot be read."""
        from mathrl.models.load import load_tokenizer  # transformers

        key = params.model.model_dump_json()
        if key not in self.tokenizers:
            folder = self._model_folder(params)
            try:
                self.tokenizers[key] = load_tokenizer(folder, params.model) if folder else None
            except UserError as error:
                self.unreadable.append(str(error))
                self.tokenizers[key] = None
        return self.tokenizers[key]

    def problems(self, asked: Asked, split: str) -> list[Problem]:
        """Those of a split; empty if they cannot be known."""
        key = f"{asked.curated} {asked.params.curate.model_dump_json() if asked.curated is None else ''}"
        if key not in self.splits:
            self.splits[key] = _sources(asked.params) if asked.curated is None else _curated_splits(asked.curated)
        return self.splits[key].get(split, [])

    def examples(self, asked: Asked) -> list[Problem] | None:
        """The worked examples before a question; None if they cannot be known."""
        count = asked.params.prompt.few_shot
        shots = [problem for problem in self.problems(asked, "sft") if problem.solution][:count] if count else []
        return shots if len(shots) == count else None

    def benchmark(self, name: str, params: Params) -> list[Problem]:
        """Those of a named benchmark; empty if they cannot be read, or are on the hub and not to be fetched."""
        try:
            if self.fetch or resolve_benchmark(name, params.evaluate.data_folder).files:
                return benchmark_problems(name, params)
        except UserError as error:
            self.unreadable.append(f"evaluate.benchmarks: {name}: {error}")
        return []

    def _model_folder(self, params: Params) -> Path | str | None:
        base = params.model.base
        assert base.type == "pretrained"
        if Path(base.path).is_dir():
            return Path(base.path)
        if self.fetch:
            return base.path
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            file: Any = try_to_load_from_cache(base.path, "tokenizer_config.json", revision=base.revision)
        except HFValidationError:
            return None
        return Path(file).parent if isinstance(file, str) else None


def judge_lengths(
    params: Params, stages: Sequence[str], typed: Sequence[str], curated: Path | None, *, fetch: bool = False
) -> Judged:
    """What the stages would say of their lengths (data/lengths.py), of what sft learns and of the benchmarks of
    `evaluate`.

    Args:
        curated: The folder of the curated splits if they are up to date; None: the sources are read, if all of them
            are local files or generated.
        fetch: Whether benchmarks and the tokenizer may come from the hub.

    Raises:
        UserError: `fetch`, and the sources cannot be read.
    """
    return _judge([Asked(stage, params, curated) for stage in stages], typed, fetch)


def judge_recipe(
    recipe: Recipe,
    folder: Path = FOLDER,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    curated: Path | None = None,
    *,
    fetch: bool = False,
) -> Judged:
    """As `judge_lengths`, of every step of a recipe over params/ in `folder`, the preset, and groups in `overrides`."""
    layers, asked = read_layers(folder, preset, None, split_choices(overrides)[0]), []
    for name, step in recipe.steps.items():
        if isinstance(step, OnProblems) and step.stage in SPLITS and (step.stage != "sft" or "sft" in step.data):
            params, splits = step_params(recipe, name, layers), curated
            if step.curated or recipe.curated:  # the splits of a step, which are made by the recipe
                splits = None
            if (curate := curate_of(recipe, name, layers)) is not None:
                params = params.model_copy(update={"curate": curate})
            asked.append(Asked(step.stage, params, splits, name))
    return _judge(asked, recipe.overrides, fetch)


def data_tokens(params: Params, curated: Path | None) -> DataTokens | None:
    """Tokens of the prompts and solutions that rl would have; None where they cannot be known (see `judge_lengths`)."""
    if params.model.base.type != "pretrained":
        return None
    from mathrl.data.lengths import ROWS, answer_lengths, nearly_all
    from mathrl.data.templates import prompt_lengths

    reader, asked = _Reader(fetch=False), Asked("rl", params, curated)
    try:
        tokenizer, problems = reader.tokenizer(params), reader.problems(asked, "rl")
        shots = reader.examples(asked)
    except UserError:
        return None
    if tokenizer is None or not problems or shots is None:
        return None
    chosen = seeded_subset(problems, ROWS, params.run.seed)
    prompts = prompt_lengths(chosen, params.prompt, tokenizer, shots)
    worked = [problem for problem in chosen if problem.solution]
    known = len(worked) >= WORKED * len(chosen)
    return DataTokens(
        rows=len(chosen),
        prompts_p95=nearly_all(prompts),
        longest_prompt=max(prompts),
        solutions_p95=nearly_all(answer_lengths(worked, tokenizer)) if known else None,
    )


def _judge(asked: Sequence[Asked], typed: Sequence[str], fetch: bool) -> Judged:
    reader, refused, warned = _Reader(fetch), list[str](), list[str]()
    seen: set[tuple[str, str]] = set()
    for one in asked:
        where = f"steps.{one.step}: " if one.step else ""
        try:
            unworked = _sft_without_working(one.params) if one.stage == "sft" else ""
            found = list(_doubts(one, reader))
        except UserError:
            if fetch:
                raise
            reader.unknown = True  # of the data: it is the stage's to say
            continue
        new = {doubt.key: doubt for doubt in reversed(found) if (one.step, doubt.key) not in seen}
        seen |= {(one.step, key) for key in new}
        refused += [f"{where}{unworked}"] if unworked else []
        for lines, said in zip((refused, warned), verdict(reversed(new.values()), typed), strict=True):
            lines += [f"{where}{line}" for line in said]
    return Judged([*dict.fromkeys(reader.unreadable), *refused], warned, reader.unknown)


def _sft_without_working(params: Params) -> str:
    """What to write where the split sft is to teach solutions that a source is known not to have; empty elsewhere."""
    curate, sft = params.curate, params.sft
    shared = bool(curate.sft_share) and not any(source.fills("sft") for source in curate.sources)
    taught = [source for source in curate.sources if source.fills("rl" if shared else "sft")]
    if not sft.steps or sft.terse_share == 1:
        return ""
    without = [source.name for source in taught if not _has_solutions(source, curate.data_folder)]
    if not without:
        return ""
    return (
        f"sft learns from worked solutions, and {' and '.join(without)} of curate.sources has none: leave sft out with "
        "sft.steps=0 (method=grpo does), learn the answers alone with sft.terse_share=1, or name the field with the "
        "solutions (solution_key)"
    )


def _has_solutions(source: Source, data_folder: str | None) -> bool:
    """Whether one of the first rows has a solution; of the hub's rows, whether the registry knows a field for it."""
    if isinstance(source, GeneratedSource):
        return True
    resolved = resolve_source(source, data_folder)
    if not resolved.files:
        named = find(source.id) if isinstance(source, HubSource) and not source.solution_key else None
        published = [shape for shape in named.shapes if shape != NORMALISED] if named else []  # that is of local files
        return not named or any(shape.solution_key or shape.format == "multiple_choice" for shape in published)
    from mathrl.reading.reading import read_source

    rows = islice(read_source(replace(resolved, limit=FIRST), 0), FIRST)
    problems = [row for row in rows if isinstance(row, Problem)]
    return not problems or any(problem.solution for problem in problems)


def _doubts(asked: Asked, reader: _Reader) -> Iterator[Doubt]:
    stage, params = asked.stage, asked.params
    texts: dict[str, list[Problem]] = {}
    if stage == "evaluate":  # of random weights too, whose lengths are not judged
        texts = {name: reader.benchmark(name, params) for name in params.evaluate.benchmarks if name != TEST}
    if params.model.base.type != "pretrained" or stage not in SPLITS or (stage == "sft" and not params.sft.steps):
        return
    from mathrl.data.lengths import length_doubts  # transformers

    tokenizer, shots = reader.tokenizer(params), reader.examples(asked) if SPLITS[stage] != "sft" else []
    if tokenizer is None or shots is None:
        reader.unknown = True
        return
    for name in params.evaluate.benchmarks if stage == "evaluate" else [SPLITS[stage]]:
        problems = texts[name] if name in texts else reader.problems(asked, name)
        reader.unknown |= not problems
        yield from length_doubts(params, stage, problems, tokenizer, shots, name if name in texts else "the data")


def _curated_splits(folder: Path) -> Splits:
    files = {split: folder / f"{split}.jsonl" for split in ("sft", "rl", TEST)}
    return {split: read_problems(file) for split, file in files.items() if file.exists() and file.stat().st_size}


def _sources(params: Params) -> Splits:
    """A seeded choice of the rows of the sources, by split, if all of them are local files or generated."""
    from mathrl.data.lengths import ROWS
    from mathrl.reading.reading import read_source

    curate: Curate = params.curate
    resolved = [resolve_source(source, curate.data_folder) for source in curate.sources]
    if not all(source.files or source.generated for source in resolved):
        return {}
    splits: Splits = {}
    for source in resolved:
        if source.generated:
            counts = {split: min(count, ROWS) for split, count in source.generated.counts.items()}
            drawn = replace(source, generated=source.generated.model_copy(update={"counts": counts}))
        else:
            drawn = replace(source, limit=min(source.limit or ROWS, ROWS))
        for row in read_source(drawn, params.run.seed):
            if isinstance(row, Problem):
                splits.setdefault(row.split, []).append(row)
    for split, share in (("sft", curate.sft_share), (TEST, curate.test_share)):
        if share and split not in splits:  # a seeded part of the rl rows
            splits[split] = splits.get("rl", [])
    return splits


def main(argv: Sequence[str] | None = None) -> None:
    """Print the judgement of the workspace as a line of JSON: {"refused": […], "unknown": false}."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curated", action="store_true", help="data/curated is up to date")
    parser.add_argument("--recipe")
    parser.add_argument("stages", nargs="*")
    words = parser.parse_args(argv)
    curated = CURATED if words.curated else None
    if words.recipe:
        judged = judge_recipe(load_recipe(words.recipe), curated=curated, fetch=True)
    else:
        judged = judge_lengths(load_params(), words.stages, typed_overrides(), curated, fetch=True)
    print(json.dumps({"refused": judged.refused, "unknown": judged.unknown}))


if __name__ == "__main__":
    exit_on_user_error(main)
