"""The tables and pictures of benchmarks/study.md: `python tools/study_page.py`.

They are made from the outputs of `mathrl recipe study` and, where they have run too, of the recipes in `TABLES` and of
`beyond-objectives`. Tables stand in the page between `<!-- table NAME -->` and `<!-- end -->` and are rewritten; a
person writes the sentences around them. `make study` runs it after the recipe.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mathrl.compose import load_params
from mathrl.core.figures import FURTHER, picture
from mathrl.core.files import read_jsonl, write_text
from mathrl.core.results import BenchmarkResults, Comparison, GroupFigures, Interval, read_recipe_summary
from mathrl.evaluation.compare import compare_pair, holm
from mathrl.evaluation.responses import read_runs
from mathrl.evaluation.summary import Rows, interval_over, values_of
from mathrl.reports.pictures import draw_groups, draw_pass_at_k

ROOT = Path(__file__).parents[1]
RECIPES, PAGE, PICTURES = ROOT / "pipelines/recipes", ROOT / "benchmarks/study.md", ROOT / "docs/pictures"
STUDY, OBJECTIVES = RECIPES / "study", RECIPES / "beyond-objectives"
# Further tables of one evaluation each: recipe and evaluation by name.
TABLES = {
    "process": ("process-supervision", "test"),
    "refreshed": ("process-refreshed", "test"),
    "more_rounds": ("negative-advantage", "rounds"),
    "noisier": ("negative-advantage", "noisier"),
    "alike": ("negative-advantage", "alike"),
    "five_seeds": ("two-rounds", "rounds"),
    "bands": ("difficulty-bands", "test"),
}
COLOURS = ("#0072B2", *FURTHER, "#D55E00", "#666666", "#8C564B")
ROLLOUTS = 512  # per step: 32 prompts x 16
ROUNDS = {"one_round": ["one_round"], "two rounds": ["round_1", "round_2"]}
METHODS = ("online_rft", "grpo", "grpo_process", "ppo")
SETTINGS = ("grpo", "format", "kl_k2", "kl_k3", "lr_1e_3", "lr_1e_1", "on_band", "on_random")


def main() -> None:
    done = {file.parent.name for file in RECIPES.glob("*/summary.json")}
    if not done & {STUDY.name, OBJECTIVES.name, *(recipe for recipe, _ in TABLES.values())}:
        sys.exit(f"error: {STUDY / 'summary.json'} does not exist; run `mathrl recipe study` first (make study)")
    tables = study() if STUDY.name in done else {}
    if OBJECTIVES.name in done:
        tables["objectives"] = objectives()
    for name, (recipe, evaluation) in TABLES.items():
        if recipe in done:
            tables[name] = table(figures_of(RECIPES / recipe)[evaluation])
    if "negative-advantage" in done:
        tables["start"] = with_and_without_steps(RECIPES / "negative-advantage", "rounds", "sft")
    if "difficulty-bands" in done:
        tables["equal_rewards"] = equal_rewards(RECIPES / "difficulty-bands", ("everything", "on_band"))
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), tables))


def study() -> dict[str, str]:
    """Its tables by name; draws its pictures."""
    summary = figures_of(STUDY)
    PICTURES.mkdir(exist_ok=True)
    draw_curves({name: [name] for name in METHODS}, PICTURES / "study-methods.png", "Methods, one SFT start")
    draw_pass_at_k(summary["at_64"].models, PICTURES / "study-at-64.png", "maj@k and pass@k before and after RL")
    draw_curves(ROUNDS, PICTURES / "study-rounds.png", "One round against two, with a reward model and a KL")
    draw_curves({name: [name] for name in SETTINGS}, PICTURES / "study-settings.png", "Settings of GRPO")
    draw_groups(levels("beyond"), PICTURES / "study-beyond.png", "Chains longer than any demonstration")
    tables = {name: table(summary[name]) for name in ("methods", "rounds", "settings", "beyond", "forced")}
    return tables | {"at_64": at_k(summary["at_64"])}


def figures_of(recipe: Path) -> dict[str, BenchmarkResults]:
    """The first benchmark's results by evaluation."""
    read = read_recipe_summary(recipe / "summary.json")
    return {step: next(iter(benchmarks.values())) for step, benchmarks in read.items()}


def objectives() -> str:
    """pass@1, pass@8 and pass@64 by model; the difference of each to GRPO, tested over seeds and problems."""
    models: dict[str, list[Rows]] = {}
    for folder in sorted(OBJECTIVES.glob("at_64-s*")):
        for run in read_runs(folder / "report/responses.jsonl"):
            models.setdefault(run.label, []).append(run.rows)
    metrics = [f"pass_at_{k}" for k in (1, 8, 64)]
    settings = load_params(ROOT / "params").evaluate
    lines = [
        "| model | " + " | ".join(f"pass@{metric.rpartition('_')[2]} | against grpo" for metric in metrics) + " |",
        "|---|" + "---|---|" * len(metrics),
    ]
    tests = {
        (label, metric): compare_pair(("grpo", label), (models["grpo"], runs), settings, metric, by_seed=True)
        for metric in metrics
        for label, runs in models.items()
        if label != "grpo"
    }
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    for label, runs in models.items():
        cells = []
        for metric in metrics:
            test = tests.get((label, metric))
            shown = corrected.get((label, metric), 1.0) < 1 - settings.confidence
            cells.append(str(interval_over([values_of(rows, metric) for rows in runs], settings)))
            cells.append(difference(replace(test, shown=shown) if test else None))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    rows = models["grpo"][0]
    size = f"{len(models['grpo'])} seeds, {len(rows)} problems x {len(rows[0].correct)} samples; "
    return "\n".join(lines) + f"\n\n{size}p-values corrected for {len(tests)} tests.\n"


def with_and_without_steps(recipe: Path, evaluation: str, model: str) -> str:
    """How many of a model's responses have steps, and how many of each kind are correct; all seeds together."""
    correct: dict[bool, list[bool]] = {True: [], False: []}
    for file in sorted(recipe.glob(f"{evaluation}-s*/report/responses.jsonl")):
        for row in read_jsonl(file):
            if row["model"] == model:
                correct["<think>" in row["response"]].append(row["correct"])
    count = sum(map(len, correct.values()))
    lines = [f"| responses of {model} | share | correct |", "|---|---|---|"]
    for name, verdicts in (("with steps", correct[True]), ("without steps", correct[False])):
        lines.append(f"| {name} | {len(verdicts) / count:.3f} | {sum(verdicts) / len(verdicts):.3f} |")
    return "\n".join(lines) + f"\n\n{count:,} responses.\n"


def equal_rewards(recipe: Path, arms: Sequence[str]) -> str:
    """The share of groups with equal rewards over a run, and the dev accuracy at its end, by seed."""
    files = {arm: sorted(recipe.glob(f"{arm}-s*/report/metrics.jsonl")) for arm in arms}
    numbers = [file.parts[-3].rpartition("-s")[2] for file in files[arms[0]]]
    lines = ["| | " + " | ".join(f"seed {number}" for number in numbers) + " |", "|---|" + "---|" * len(numbers)]
    for arm, records in files.items():
        runs = [list(read_jsonl(file)) for file in records]
        shares = [sum(row["rollout/zero_variance_share"] for row in rows) / len(rows) for rows in runs]
        ends = [next(row["dev/accuracy"] for row in reversed(rows) if "dev/accuracy" in row) for rows in runs]
        lines.append(f"| {arm}: groups with equal rewards | " + " | ".join(f"{share:.2f}" for share in shares) + " |")
        lines.append(f"| {arm}: dev accuracy at the end | " + " | ".join(f"{end:.3f}" for end in ends) + " |")
    return "\n".join(lines) + "\n"


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with every marked table replaced.

    Raises:
        ValueError: a table has no place in the page.
    """
    for name, text in tables.items():
        place = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"{PAGE} has no place for the table {name}: <!-- table {name} --> … <!-- end -->")
        page = place.sub(lambda match, text=text: f"{match[1]}{text}{match[2]}", page)
    return page


def table(results: BenchmarkResults) -> str:
    """pass@1, pass@k, maj@k and length by model; the difference to the first with its interval."""
    first, one = next(iter(results.models.items()))
    k = max(one.pass_at_k)
    lines = [f"| model | pass@1 | pass@{k} | maj@{k} | length | against {first} |", "|---|---|---|---|---|---|"]
    for name, figures in results.models.items():
        votes = figures.maj_at_k.get(k, figures.pass_at_1)
        lines.append(
            f"| {name} | {figures.pass_at_1} | {figures.pass_at_k[k].mean:.3f} | {votes.mean:.3f} | "
            f"{figures.response_length:.1f} | {difference(results.comparisons.get(f'{first}_to_{name}'))} |"
        )
    size = f"{one.seeds} seeds, {one.problems} problems x {one.samples} samples."
    return "\n".join(lines) + f"\n\n{size}\n"


def at_k(results: BenchmarkResults) -> str:
    """pass@k and maj@k by k, before and after RL."""
    ks = next(iter(results.models.values())).pass_at_k
    lines = ["| k | " + " | ".join(str(k) for k in ks) + " |", "|---|" + "---|" * len(ks)]
    for kind in ("pass", "maj"):
        for label, figures in results.models.items():
            rates = figures.pass_at_k if kind == "pass" else {1: figures.pass_at_1, **figures.maj_at_k}
            lines.append(f"| {kind}@k, {label} | " + " | ".join(f"{rates[k].mean:.3f}" for k in ks) + " |")
    return "\n".join(lines) + "\n"


def difference(test: Comparison | None) -> str:
    if test is None:
        return ""
    figures = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
    return figures if test.shown else f"{figures}, no difference shown"


def draw_curves(arms: Mapping[str, Sequence[str]], file: Path, title: str) -> None:
    """Dev accuracy over samples: mean and range of the seeds; rounds follow one another."""
    with picture(file, width=7.2, height=4.2) as axes:
        for (label, steps), colour in zip(arms.items(), COLOURS, strict=False):
            runs = [curve([STUDY / f"{step}-s{seed}" for step in steps]) for seed in seeds(steps[0])]
            at = sorted(set.intersection(*(set(run) for run in runs)))
            axes.plot(at, [sum(run[x] for run in runs) / len(runs) for x in at], label=label, color=colour)
            low, high = ([end(run[x] for run in runs) for x in at] for end in (min, max))
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="rollouts", ylabel="dev pass@1", title=title, ylim=(0, 1.02))
        axes.legend(fontsize=8, ncols=2)


def seeds(step: str) -> list[int]:
    return sorted(int(folder.name.rsplit("-s", 1)[1]) for folder in STUDY.glob(f"{step}-s*"))


def curve(folders: Sequence[Path]) -> dict[int, float]:
    """Dev accuracy by the number of sampled rollouts, over steps that follow one another."""
    accuracy, before = {}, 0
    for folder in folders:
        rows = list(read_jsonl(folder / "report/metrics.jsonl"))
        accuracy |= {before + ROLLOUTS * row["step"]: row["dev/accuracy"] for row in rows if "dev/accuracy" in row}
        before += ROLLOUTS * rows[-1]["step"]
    return accuracy


def levels(step: str) -> dict[str, dict[str, GroupFigures]]:
    """pass@1 by level over all seeds, for `draw_groups`; the bars' ends are the worst and best seed."""
    models: dict[str, dict[str, list[float]]] = {}
    for seed in seeds(step):
        for run in read_runs(STUDY / f"{step}-s{seed}" / "report/responses.jsonl"):
            by: dict[str, list[float]] = {}
            for row in run.rows:
                by.setdefault(str(row.level), []).append(sum(row.correct) / len(row.correct))
            for level in sorted(by, key=int):
                models.setdefault(run.label, {}).setdefault(level, []).append(sum(by[level]) / len(by[level]))
    return {model: {level: _spread(values) for level, values in by.items()} for model, by in models.items()}


def _spread(values: Sequence[float]) -> GroupFigures:
    return GroupFigures(0, Interval(sum(values) / len(values), min(values), max(values)))


if __name__ == "__main__":
    main()
