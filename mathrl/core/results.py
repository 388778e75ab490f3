"""What an evaluation found, as types: figures of each model, paired comparisons, and the one table of results.

`EvaluationSummary` is reports/summary.json, read and written here alone. Without numpy, so that flows and tasks
read it at once. Names in files take no @: pass_at_8 is pass@8.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_json

PIPELINE = ("base", "sft", "rl")
# Figures of a training run, by their names in its metrics, as a person reads them.
TRAINING_FIGURES = {
    "dev/accuracy": "accuracy on dev problems",
    "reward/accuracy": "accuracy of the rollouts",
    "response_length": "response length in tokens",
    "rollout/truncated_share": "share of truncated responses",
    "entropy": "entropy",
    "kl": "KL to the start",
    "loss": "loss",
    "dev/loss": "loss on dev",
}
T = TypeVar("T")


def short_name(benchmark: str) -> str:
    """A benchmark's name in file names, ids and metrics.

    >>> short_name("math500"), short_name("data/exam.jsonl"), short_name("cais/mmlu:all:test")
    ('math500', 'exam.jsonl', 'mmlu_all_test')
    """
    return re.sub(r"[^\w.-]+", "_", Path(benchmark).name)


def eval_name(benchmark: str) -> str:
    """What stands before the metrics of a benchmark that is measured during training: eval/math500."""
    return f"eval/{short_name(benchmark)}"


def training_table(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, float]) -> list[dict[str, str]]:
    """The first and last values of a training run; of a run without steps, its summary.

    >>> training_table([{"step": 1, "dev/accuracy": 0.25}, {"step": 2, "dev/accuracy": 0.5123}], {})
    [{'figure': 'accuracy on dev problems', 'first': '0.25', 'last': '0.512'}]
    >>> training_table([], {"dropped": 12.0, "problems_rl": 20_480.0})
    [{'figure': 'dropped', 'value': '12'}, {'figure': 'problems rl', 'value': '20,480'}]
    """
    table = []
    for name, title in TRAINING_FIGURES.items():
        if values := [row[name] for row in rows if row.get(name) is not None]:
            table.append({"figure": title, "first": short_number(values[0]), "last": short_number(values[-1])})
    figures = [(name, value) for name, value in summary.items() if value is not None]
    return table or [{"figure": name.replace("_", " "), "value": short_number(value)} for name, value in figures]


def training_sentence(stage: str, table: Sequence[Mapping[str, str]], colour: str = "") -> str:
    """
    >>> training_sentence("rl", [{"figure": "accuracy on dev problems", "first": "0.25", "last": "0.512"}], "green")
    'rl: accuracy on dev problems 0.25 to 0.512; health green'
    """
    words = [
        f"{row['figure']} {row['value'] if 'value' in row else row['first'] + ' to ' + row['last']}" for row in table
    ]
    return f"{stage}: {', '.join(words[:3]) or 'no figures'}{f'; health {colour}' if colour else ''}"


def short_number(value: float) -> str:
    """Three digits, and all of a whole number.

    >>> short_number(0.98581998), short_number(20_480.0), short_number(0.00000123), short_number(float("nan"))
    ('0.986', '20,480', '1.23e-06', 'nan')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bounds.

    Example:
        Interval(mean=0.884, low=0.861, high=0.906)
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_row(self, name: str) -> dict[str, float]:
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], name: str) -> "Interval":
        return cls(row[name], row[f"{name}_low"], row[f"{name}_high"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired test of two models on the problems that both answered.

    Example:
        Comparison(before="sft", after="rl", problems=500, difference=0.54, low=0.50, high=0.58,
                   p_value=0.0001, detectable=0.056, shown=True)

    `difference` is after minus before; `p_value` is two-sided; `detectable` is the smallest true difference
    that a set of this size and spread shows with 80 % power; `shown` when the interval leaves out 0 and the
    p-value is below 1 - confidence. `corrected_p`, where several models are compared, is the p-value that counts then
    (`mathrl.evaluation.compare.holm`). `before_runs` and `after_runs` count the training runs of each; `by_seed` says
    that they were paired, one of each with the same seed and start.
    """

    before: str
    after: str
    problems: int
    difference: float
    low: float
    high: float
    p_value: float
    detectable: float
    shown: bool
    before_runs: int = 1
    after_runs: int = 1
    corrected_p: float | None = None
    by_seed: bool = False

    def to_row(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict()}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Comparison":
        return cls(**{entry.name: row[entry.name] for entry in fields(cls) if entry.name in row})

    def verdict(self) -> str:
        """One sentence with the figures."""
        p = "p < 0.0001" if self.p_value < 0.0001 else f"p = {self.p_value:.4f}"
        if self.corrected_p is not None and f"{self.corrected_p:.4f}" != f"{self.p_value:.4f}":
            p += f" (corrected {self.corrected_p:.4f})"
        figures = f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], {p}, {self.problems} problems"
        if self.before_runs + self.after_runs > 2:
            figures += f", {self.before_runs} and {self.after_runs} runs{' paired by seed' if self.by_seed else ''}"
        if self.shown:
            better, worse = (self.after, self.before) if self.difference > 0 else (self.before, self.after)
            return f"{better} is better than {worse}: {figures}"
        return (
            f"no difference shown between {self.before} and {self.after}: {figures}; "
            f"this set shows differences from {self.detectable:.3f} up"
        )


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """pass@1 on the problems of one level or subject."""

    problems: int
    pass_at_1: Interval


@dataclass(frozen=True)
class ModelFigures:
    """Figures of one model on one benchmark; `seeds` counts its training runs where a recipe has several.

    Example of its row in a file:
        {"problems": 500, "samples": 8, "pass_at_1": 0.884, "pass_at_1_low": 0.861, "pass_at_1_high": 0.906,
         "pass_at_8": 0.945, …, "maj_at_8": 0.913, …, "response_length": 34.1, "truncated_share": 0.002,
         "no_answer_share": 0.001, "by_level": {"2": {"problems": 100, "pass_at_1": 0.97, …}}, "by_subject": {}}

    `verifier` are the counters of an evaluation with a judge model (mathrl/rewards/cascade.py). Where responses may
    call a tool, `calls` is their mean number, `call_share` the share of responses with one, and `right_with_call` that
    of the right ones.
    `pass_at_k` begins with k = 1, `maj_at_k` with k = 2; lengths are in tokens. None is what was not counted.
    """

    problems: int
    samples: int
    pass_at_k: Mapping[int, Interval]
    maj_at_k: Mapping[int, Interval]
    response_length: float
    truncated_share: float
    no_answer_share: float | None = None
    by_level: Mapping[str, GroupFigures] | None = None
    by_subject: Mapping[str, GroupFigures] | None = None
    prompts_too_long: int | None = None
    seeds: int | None = None
    response_length_low: float | None = None
    response_length_high: float | None = None
    verifier: Mapping[str, float] | None = None
    calls: float | None = None
    call_share: float | None = None
    right_with_call: float | None = None

    @property
    def pass_at_1(self) -> Interval:
        return self.pass_at_k[1]

    def groups(self, by: str) -> Mapping[str, GroupFigures]:
        """By "level" or "subject"; empty where there are none."""
        return (self.by_level if by == "level" else self.by_subject) or {}

    def to_row(self) -> dict[str, Any]:
        row = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for kind in ("pass_at", "maj_at"):
            for k, interval in row.pop(f"{kind}_k").items():
                row |= interval.to_row(f"{kind}_{k}")
        for by in ("by_level", "by_subject"):
            if row[by] is not None:
                row[by] = {
                    name: {"problems": group.problems} | group.pass_at_1.to_row("pass_at_1")
                    for name, group in row[by].items()
                }
        return {name: value for name, value in row.items() if value is not None}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ModelFigures":
        values = {entry.name: row[entry.name] for entry in fields(cls) if entry.name in row}
        for kind in ("pass_at", "maj_at"):
            ks = sorted(int(match[1]) for name in row if (match := re.fullmatch(rf"{kind}_(\d+)", name)))
            values[f"{kind}_k"] = {k: Interval.from_row(row, f"{kind}_{k}") for k in ks}
        for by in ("by_level", "by_subject"):
            if by in row:
                values[by] = {
                    name: GroupFigures(group["problems"], Interval.from_row(group, "pass_at_1"))
                    for name, group in row[by].items()
                }
        return cls(**values)

    def numbers(self) -> dict[str, float]:
        """What the tracker keeps: {"pass_at_1": 0.884, "response_length": 34.1, …}."""
        numbers = {name: float(value) for name, value in self.to_row().items() if isinstance(value, int | float)}
        return numbers | dict(self.verifier or {})


@dataclass(frozen=True)
class BenchmarkResults:
    """The models of one evaluation on one benchmark, in their order, and comparisons by names such as sft_to_rl."""

    models: Mapping[str, ModelFigures]
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The models' order is written where their names do not give it: JSON files are sorted by key."""
        row: dict[str, Any] = {
            "models": {name: figures.to_row() for name, figures in self.models.items()},
            "comparisons": {name: test.to_row() for name, test in self.comparisons.items()},
        }
        return row if list(self.models) == _by_name(self.models) else row | {"order": list(self.models)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "BenchmarkResults":
        order = row.get("order", _by_name(row["models"]))
        tests = row.get("comparisons", {})
        return cls(
            {name: ModelFigures.from_row(row["models"][name]) for name in order},
            {name: Comparison.from_row(test) for name, test in tests.items()},
        )


@dataclass(frozen=True)
class EvaluationSummary:
    """reports/summary.json: results by benchmark, `benchmark` the one that leads, and its verdict in a sentence.

    Example of the file:
        {"benchmark": "test", "verdict": "rl is better than sft: …", "sampling": {"samples": 8, …},
         "models": {"base": {…}, "sft": {…}, "rl": {…}}, "comparisons": {"sft_to_rl": {…}, "base_to_rl": {…}},
         "benchmarks": {"gsm8k": {"models": {…}, "comparisons": {…}}}}
    """

    benchmark: str
    results: Mapping[str, BenchmarkResults]
    verdict: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> Mapping[str, ModelFigures]:
        return self.results[self.benchmark].models

    @property
    def comparisons(self) -> Mapping[str, Comparison]:
        return self.results[self.benchmark].comparisons

    def to_row(self) -> dict[str, Any]:
        others = {name: results.to_row() for name, results in self.results.items() if name != self.benchmark}
        optional = {"verdict": self.verdict, "sampling": dict(self.sampling)}
        return {
            "benchmark": self.benchmark,
            **{name: value for name, value in optional.items() if value},
            **self.results[self.benchmark].to_row(),
            "benchmarks": others,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "EvaluationSummary":
        results = {row["benchmark"]: BenchmarkResults.from_row(row)}
        results |= {name: BenchmarkResults.from_row(other) for name, other in row.get("benchmarks", {}).items()}
        return cls(row["benchmark"], results, row.get("verdict", ""), row.get("sampling", {}))

    @classmethod
    def read(cls, file: Path) -> "EvaluationSummary":
        """Raises UserError: no such file, or no summary of an evaluation."""
        return _parse_file(file, cls.from_row)

    def write(self, file: Path) -> None:
        write_json(file, self.to_row())

    def headline(self) -> dict[str, dict[str, float]]:
        """reports/metrics.json, what DVC shows: {"rl": {"pass_at_1": 0.98, "pass_at_8": …, "maj_at_8": …, …}, …}."""
        rows: dict[str, dict[str, float]] = {}
        for name, figures in self.models.items():
            k = max(figures.pass_at_k)
            row = {"pass_at_1": figures.pass_at_1.mean, f"pass_at_{k}": figures.pass_at_k[k].mean}
            row |= {f"maj_at_{k}": figures.maj_at_k[k].mean} if k in figures.maj_at_k else {}
            rows[name] = row | {"response_length": figures.response_length}
        return rows


# pipelines/recipes/<name>/summary.json: evaluate step → benchmark → results, over all seeds.
RecipeSummary = Mapping[str, Mapping[str, BenchmarkResults]]


def read_recipe_summary(file: Path) -> RecipeSummary:
    """Raises UserError: no such file, or no summary of a recipe."""
    return _parse_file(
        file,
        lambda rows: {
            step: {name: BenchmarkResults.from_row(row) for name, row in benchmarks.items()}
            for step, benchmarks in rows.items()
        },
    )


def write_recipe_summary(file: Path, summary: RecipeSummary) -> None:
    rows = {
        step: {name: {"order": list(results.models)} | results.to_row() for name, results in benchmarks.items()}
        for step, benchmarks in summary.items()
    }
    write_json(file, rows)


def results_table(models: Mapping[str, ModelFigures]) -> list[dict[str, str]]:
    """A row of text per model, by column; the k of pass@k and maj@k is the largest that all models have, but for those
    that have no k above 1.

    Example:
        [{"model": "rl", "pass@1": "0.884", "interval": "0.861 to 0.906", "pass@8": "0.945", "maj@8": "0.913",
          "mean length": "34.1", "truncated": "0.2%", "no answer": "0.1%", "problems": "500"}]
    """
    if not models:
        return []
    several = [set(figures.pass_at_k) for figures in models.values() if len(figures.pass_at_k) > 1]
    k = max(set.intersection(*several), default=1) if several else 1
    rows = []
    for name, figures in models.items():
        first = figures.pass_at_1
        row = {"model": name, "seeds": str(figures.seeds or "")}
        row |= {"pass@1": f"{first.mean:.3f}", "interval": f"{first.low:.3f} to {first.high:.3f}"}
        if k > 1:
            row[f"pass@{k}"] = f"{figures.pass_at_k[k].mean:.3f}" if k in figures.pass_at_k else ""
            row[f"maj@{k}"] = f"{figures.maj_at_k[k].mean:.3f}" if k in figures.maj_at_k else ""
        row |= {"mean length": f"{figures.response_length:.1f}", "truncated": _percent(figures.truncated_share)}
        row |= {"no answer": _percent(figures.no_answer_share), "problems": str(figures.problems)}
        row |= {"with a call": _percent(figures.call_share), "right ones": _percent(figures.right_with_call)}
        rows.append(row)
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _by_name(models: Collection[str]) -> list[str]:
    """The pipeline's models in its order, then the others by name."""
    return [*(name for name in PIPELINE if name in models), *sorted(set(models) - set(PIPELINE))]


def _parse_file(file: Path, parse: Callable[[Any], T]) -> T:
    rows = read_json(file)
    try:
        return parse(rows)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: not the summary of an evaluation ({error!r}); run the evaluation again") from None
