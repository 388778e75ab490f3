"""What a file of problems holds before anything is made of it: fields, faults, answers, languages, overlaps."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from py3langid import classify

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.curation.decontaminate import EvaluationIndex, find_hits
from mathrl.curation.deduplicate import agree
from mathrl.curation.processes import in_order
from mathrl.curation.quality import DESCRIPTIONS, broken_rules
from mathrl.data.grams import exact_key
from mathrl.grading import reading
from mathrl.params.data import Decontaminate, FileSource, Quality, Rule
from mathrl.params.load import dump_yaml, validate_section
from mathrl.reading.reading import Read, Rejected, read_source
from mathrl.reading.registry import REGISTRY
from mathrl.reading.row_files import Draw, list_files, read_rows
from mathrl.reading.row_formats import RowShape, source_fields
from mathrl.reading.sniff import SAMPLE, Sniffed, sniff
from mathrl.reading.sources import ResolvedSource, resolve_benchmark

RULE, GATE = Decontaminate(), Quality()
MOST = 0.5  # share of the rows above which a rule says what kind of file this is
PIECE = 4096  # rows that one process judges at a time
COMPARED = 5_000  # rows that are compared with each other
LOOKED_AT = 50_000  # rows of a file, unless a person asks for more
EXAMPLES, SHOWN = 5, 20
DIALECTS = {"yue": "zh"}  # which a short text does not tell apart
_FORMULA = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[A-Za-z]+|[\d{}_^=+*/<>|-]+", re.DOTALL)
_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\d_]{2,}")


@dataclass(frozen=True)
class Lengths:
    """Lengths of texts: in tokens if there is a tokenizer, else in characters."""

    unit: str
    median: float
    p95: float
    longest: int
    texts: int

    @classmethod
    def of(cls, values: Sequence[int], unit: str) -> "Lengths | None":
        if not values:
            return None
        return cls(unit, float(np.median(values)), float(np.percentile(values, 95)), max(values), len(values))


@dataclass(frozen=True)
class Example:
    """A row as it is prompted, with what it is graded against."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    solution: str | None


@dataclass(frozen=True)
class Overlap:
    """How many rows equal a question of a benchmark, and how many more decontamination would drop for it."""

    benchmark: str
    questions: int
    equal: int
    near: int


@dataclass(frozen=True)
class Flaw:
    """A rule of the quality gate, the number of rows that break it, the first of them, and whether it drops them."""

    rule: Rule
    rows: int
    example: Problem
    drops: bool


@dataclass(frozen=True)
class Inspection:
    """Everything that the screen and the page show. `problems` are the good rows that were looked at."""

    files: tuple[Path, ...]
    sniffed: Sniffed
    rows: int
    problems: Sequence[Problem]
    bad: Counter[str]
    bad_examples: Sequence[tuple[str, str]]
    duplicates: int
    conflicts: Sequence[tuple[str, str, str]]
    readings: Counter[str]
    unread: Sequence[tuple[str, str]]
    languages: Counter[str]
    prompts: Lengths
    solutions: Lengths | None
    overlaps: Sequence[Overlap]
    missing_benchmarks: Sequence[str]
    examples: Sequence[Example]
    section: str
    flaws: Sequence[Flaw] = ()
    flawed: int = 0
    one_template: bool = False
    levels: Counter[int] = field(default_factory=Counter)
    subjects: Counter[str] = field(default_factory=Counter)

    @property
    def looked_at(self) -> int:
        return len(self.problems) + self.bad.total()

    @property
    def usable(self) -> int:
        """The different good problems of the whole file that pass the quality gate, as the part that was looked at
        lets expect.
        """
        passed = 1 - self.flawed / len(self.problems)
        return round((len(self.problems) - self.duplicates) * passed * self.rows / self.looked_at)


@dataclass(frozen=True)
class Prompting:
    """How rows are prompted: the text of a prompt, and the tokens of a text and of a prompt if there is a tokenizer."""

    text: Callable[[Problem], str]
    tokens: Callable[[str], int] | None = None
    prompt_tokens: Callable[[Problem], int] | None = None

    @property
    def unit(self) -> str:
        return "tokens" if self.tokens else "characters"

    def length(self, text: str) -> int:
        return self.tokens(encodable(text)) if self.tokens else len(text)

    def prompt_length(self, problem: Problem) -> int:
        return self.prompt_tokens(problem) if self.prompt_tokens else len(self.text(problem))


def inspect_rows(
    path: Path,
    keys: Mapping[str, str],
    prompting: Prompting,
    *,
    name: str | None = None,
    limit: int | None = LOOKED_AT,
    data_folder: str | None = None,
    seed: int = 0,
) -> Inspection:
    """Look at a file, a folder or a pattern of files; `given` has the keys that need no guess.

    Args:
        limit: Maximum number of rows to look at, by a seeded choice; None: all.
        data_folder: Folder with the benchmarks to compare with.

    Raises:
        UserError: no such file, no row, or no field that looks like a question or an answer.
    """
    files = tuple(list_files(path))
    sample = _sample(files, seed)
    sniffed = sniff(sample, keys)
    name = name or re.sub(r"\W+", "_", path.stem.split(".")[0]).strip("_") or "mine"
    resolved = ResolvedSource(name, "rl", "not stated", files, shapes=(sniffed.shape,), limit=limit)
    read = Read()
    problems: list[Problem] = []
    bad: Counter[str] = Counter()
    bad_examples: list[tuple[str, str]] = []
    for item in read_source(resolved, seed, read):
        if isinstance(item, Rejected):
            bad[re.sub(r",? \(?found .*|(?<=id ).*(?= occurs)", "", item.reason, flags=re.DOTALL)] += 1
            bad_examples += [(item.shown, item.reason)] if len(bad_examples) < SHOWN else []
        else:
            problems.append(item)
    if not problems:
        raise UserError(f"{path}: no row could be read; the first: {': '.join(bad_examples[0])}")
    duplicates, conflicts = _duplicates(problems)
    readings, unread = _readings(problems)
    flaws, flawed = _flaws(problems)
    overlaps, missing = _overlaps(problems, files, data_folder, seed)
    template = _is_one_template(problems, seed)
    chosen = random.Random(derive_seed(seed, "inspect")).sample(range(len(problems)), min(EXAMPLES, len(problems)))
    prompt_lengths = Lengths.of([prompting.prompt_length(problem) for problem in problems], prompting.unit)
    assert prompt_lengths is not None
    return Inspection(
        files=files,
        sniffed=sniffed,
        rows=sum(read.rows.values()),
        problems=problems,
        bad=bad,
        bad_examples=bad_examples,
        duplicates=duplicates,
        conflicts=conflicts,
        readings=readings,
        unread=unread,
        languages=languages(problem.question for problem in problems),
        prompts=prompt_lengths,
        solutions=Lengths.of([prompting.length(p.solution) for p in problems if p.solution], prompting.unit),
        overlaps=overlaps,
        missing_benchmarks=missing,
        examples=[
            Example(p.id, prompting.text(p), p.answers, p.solution) for p in (problems[i] for i in sorted(chosen))
        ],
        section=curate_section(name, path, sniffed.shape, bool(bad), [o.benchmark for o in overlaps], flaws, template),
        flaws=flaws,
        flawed=flawed,
        one_template=template,
        levels=Counter(p.level for p in problems if p.level is not None),
        subjects=Counter(p.subject for p in problems if p.subject),
    )


def curate_section(
    name: str,
    path: Path,
    shape: RowShape,
    bad: bool,
    benchmarks: Sequence[str],
    flaws: Sequence[Flaw] = (),
    one_template: bool = False,
) -> str:
    """The section of params/curate.yaml for these rows: nine tenths to train on, a tenth to test on."""
    source = {"type": "file", "name": name, "path": str(path.absolute()), "split": "rl", **source_fields(shape)}
    source |= {"one_template": True} if one_template else {}
    validate_section(FileSource, source, "the guessed source")
    section: dict[str, Any] = {"sources": [source], "test_share": 0.1, "dev_share": 0.05}
    section["on_bad_row"] = "reject" if bad else "stop"
    section["deduplicate"] = {"exact": True, "near": {}}
    off = [flaw.rule for flaw in flaws if not flaw.drops and flaw.rule in GATE.drop]
    section["quality"] = {"drop": [rule for rule in GATE.drop if rule not in off]} if off else {}
    return dump_yaml({"curate": {**section, "decontaminate": {"benchmarks": list(benchmarks)}}})


def languages(texts: Iterable[str]) -> Counter[str]:
    """Texts by language (ISO 639-1); "too short to tell" for those with fewer than three words outside formulas."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = _WORD.findall(_FORMULA.sub(" ", text))
        name = classify(" ".join(words))[0] if len(words) >= 3 else "too short to tell"
        counts[DIALECTS.get(name, name)] += 1
    return counts


def _sample(files: Sequence[Path], seed: int) -> list[dict[str, Any]]:
    draw = Draw(SAMPLE, random.Random(derive_seed(seed, "sniff")))
    for file in files:
        for row in read_rows(file, wanted=draw.wants_more):
            if row.problem:
                draw.skip()
            else:
                draw.add(row.values)
    rows = list(draw.chosen_rows())
    if not rows:
        raise UserError(f"{', '.join(map(str, files))}: no row that can be read")
    return rows


def _duplicates(problems: Sequence[Problem]) -> tuple[int, list[tuple[str, str, str]]]:
    """The number of rows with the question of an earlier row, and the pairs among them whose answers differ."""
    conflicts = []
    groups: dict[int, list[int]] = defaultdict(list)
    for index, problem in enumerate(problems):
        groups[exact_key(problem.question)].append(index)
    clusters = [group for group in groups.values() if len(group) > 1]
    for cluster in clusters:
        first = problems[cluster[0]]
        other = next((problems[index] for index in cluster[1:] if not agree(first, problems[index])), None)
        if other is not None:
            answers = f"{first.id}: {', '.join(first.answers)}; {other.id}: {', '.join(other.answers)}"
            conflicts.append((first.question, answers, f"{len(cluster)} rows"))
    return sum(len(cluster) - 1 for cluster in clusters), conflicts


def _is_one_template(problems: Sequence[Problem], seed: int) -> bool:
    """Whether decontamination would drop most rows against a tenth of them held out: a template's words repeat in all.

    Repeated questions do not count: deduplication takes them out first.
    """
    different = list({exact_key(problem.question): problem for problem in problems}.values())
    drawn = random.Random(derive_seed(seed, "template")).sample(different, min(COMPARED, len(different)))
    index, tests = EvaluationIndex(RULE.ngram, RULE.share), len(drawn) // 10
    for problem in drawn[:tests]:
        index.add_problem(problem)
    trained = [replace(problem, split="rl") for problem in drawn[tests:]]
    dropped = sum(hit is not None and hit.is_dropped(RULE.min_share) for _, hit in find_hits(trained, index))
    return tests > 0 and dropped > MOST * len(trained)


def _readings(problems: Sequence[Problem]) -> tuple[Counter[str], list[tuple[str, str]]]:
    counts: Counter[str] = Counter()
    unread = []
    for problem in (problem for problem in problems if problem.answers):
        kinds = [reading(answer) for answer in problem.answers]
        best = next((kind for kind in kinds if kind != "not parsed"), "not parsed")
        counts[best] += 1
        if best == "not parsed":
            unread.append((problem.id, problem.answers[0]))
    return counts, unread


def _flaws(problems: Sequence[Problem]) -> tuple[list[Flaw], int]:
    """The rules of the quality gate that rows break, in the gate's order, and the number of rows that it would drop.

    A rule that most rows break says what kind of file it is, such as one of multiple choice: it drops nothing. Nor does
    one that the gate only reports.
    """
    pieces = [problems[start : start + PIECE] for start in range(0, len(problems), PIECE)]
    broken = list(chain.from_iterable(in_order(_rules_broken_by, GATE, pieces)))
    rows = Counter(chain.from_iterable(broken))
    flaws = [
        Flaw(
            rule,
            rows[rule],
            next(p for p, rules in zip(problems, broken, strict=True) if rule in rules),
            rule in GATE.drop and rows[rule] <= MOST * len(problems),
        )
        for rule in DESCRIPTIONS
        if rule in rows
    ]
    dropping = {flaw.rule for flaw in flaws if flaw.drops}
    return flaws, sum(not dropping.isdisjoint(rules) for rules in broken)


def _rules_broken_by(gate: Quality, problems: Sequence[Problem]) -> list[list[Rule]]:
    return [broken_rules(problem, {}, gate) for problem in problems]


def _overlaps(
    problems: Sequence[Problem], files: Sequence[Path], data_folder: str | None, seed: int
) -> tuple[list[Overlap], list[str]]:
    """The overlaps with the benchmarks that are on this machine, and the names of the others."""
    overlaps, missing = [], []
    inspected = {file.resolve() for file in files}
    keys = [exact_key(problem.question) for problem in problems]
    trained = [replace(problem, split="rl") for problem in problems]
    for name in (name for name, named in REGISTRY.items() if named.evaluation):
        resolved = resolve_benchmark(name, data_folder)
        if not resolved.files:
            missing.append(name)
            continue
        if inspected & {file.resolve() for file in resolved.files}:
            continue
        as_they_are = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in resolved.files)
        index, questions = _index_of(name, data_folder, seed, as_they_are)
        equal = [key in questions for key in keys]
        hits = (hit and hit.share >= RULE.min_share for _, hit in find_hits(trained, index))
        near = sum(bool(hit) and not same for hit, same in zip(hits, equal, strict=True))
        overlaps.append(Overlap(name, questions.total(), sum(equal), near))
    return overlaps, missing


@cache
def _index_of(
    name: str, data_folder: str | None, seed: int, files: tuple[tuple[Path, int, int], ...]
) -> tuple[EvaluationIndex, Counter[int]]:
    """The benchmark's texts, and how often each question is there, by its `exact_key`. `files` have time and size."""
    index, questions = EvaluationIndex(RULE.ngram, RULE.share), Counter[int]()
    for item in read_source(resolve_benchmark(name, data_folder), seed):
        if isinstance(item, Problem):
            index.add_problem(item)
            questions[exact_key(item.question)] += 1
    return index, questions
