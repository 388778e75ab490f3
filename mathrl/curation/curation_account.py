"""The curation as a bank statement: manifest.json, report.md, pictures."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from mathrl.core.figures import BLUE, GREEN, ORANGE, PURPLE, picture
from mathrl.core.files import write_text
from mathrl.core.hashing import sha256_jsonl
from mathrl.core.markdown import cell, code, table
from mathrl.curation.curated import TRAINED, Curated
from mathrl.curation.curation import CurationPlan
from mathrl.curation.quality import DESCRIPTIONS
from mathrl.curation.row_shards import SPLITS
from mathrl.curation.row_store import StoredProblems
from mathrl.params.data import Curate, Quality

EXAMPLES = 3  # of each reason to drop a row, and of each rule of the quality gate
SHARES = {
    "coverage": "the part of the training or evaluation text, the larger, that lies in shared n-grams",
    "words": "the shared distinct words over those of the text with fewer",
}
CHANCE_SHARE = 0.1  # of a source, from which hits of short texts are pointed out
COLOURS = {"sft": BLUE, "rl": ORANGE, "dev": PURPLE, "test": GREEN}


def manifest(
    curated: Curated, planned: CurationPlan, curate: Curate, seed: int, outputs: dict[str, Any]
) -> dict[str, Any]:
    """What went in and what came out, by digest; the same for the same inputs on any machine."""
    return {
        "seed": seed,
        "inputs": curated.inputs,
        "evaluation_sets": curated.evaluation_inputs,
        "evaluation_sizes": curated.evaluation_sizes,
        "outputs": outputs,
        "steps": [
            {"step": s.name, "rows_in": s.rows_in, "rows_out": s.rows_out, "reasons": dict(s.reasons)}
            for s in curated.steps
        ],
        "splits": {
            split: {"problems": len(rows), "by_source": rows.count_by_source()}
            for split, rows in curated.splits.items()
        },
        "dropped": dict(Counter(row.reason for row in curated.dropped)),
        "variants": dict(Counter(group.difference for group in curated.variants)),
        "assistant_turns_cut": curated.cut_turns,
        "solutions_barred_from_sft": curated.solutions_barred,
        "rejected": len(curated.rejected),
        "licences": {r.name: r.licence for r in (*planned.sources, *planned.evaluation)},
        "deduplicate": curate.deduplicate.model_dump(mode="json"),
        "decontaminate": curate.decontaminate.model_dump(mode="json") if curate.decontaminate else None,
        "quality": curate.quality.model_dump(mode="json", exclude={"samples"}) if curate.quality else None,
        "quality_samples": sha256_jsonl(planned.samples) if planned.samples else None,
        "broken_rules": dict(Counter(rule for row in curated.broken for rule in row.rules)),
        "decisions_obeyed": dict(Counter(hit.decision for hit in curated.hits if hit.decision)),
        "not_indexed": {"why": "evaluation texts under 3 grams", "texts": len(curated.too_short)},
    }


def write_report(folder: Path, curated: Curated, curate: Curate, seed: int) -> None:
    """report.md and levels.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _draw_levels(folder / "levels.png", curated.splits)
    write_text(folder / "report.md", _markdown(curated, curate, seed))


def _markdown(curated: Curated, curate: Curate, seed: int) -> str:
    total = sum(len(rows) for rows in curated.splits.values())
    used = sum(map(bool, curated.splits.values()))
    summary = (
        f"{total:,} problems in {used} splits, no question in two of them. {len(curated.dropped):,} rows "
        f"dropped, {len(curated.rejected):,} rejected; each stands with its reason in "
        "`data/curated/dropped.jsonl` and `rejected.jsonl`."
    )
    parts = ["# Curation report", "", summary, "", "## Rows in and out of each step", ""]
    rows_of_steps = []
    for step in curated.steps:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in step.reasons.most_common())
        rows_of_steps.append((step.name, f"{step.rows_in:,}", f"{step.rows_out:,}", reasons))
    parts += table(("step", "in", "out", "gone because"), rows_of_steps)
    parts += ["", "## What came out", ""]
    counts = {split: Counter(rows.count_by_source()) for split, rows in curated.splits.items()}
    sources = sorted({source for count in counts.values() for source in count})
    parts += table(
        ("source", *SPLITS),
        [
            *((name, *(f"{counts[s][name]:,}" for s in SPLITS)) for name in sources),
            ("all", *(f"{len(curated.splits[s]):,}" for s in SPLITS)),
        ],
    )
    parts += ["", "![levels](levels.png)", ""]
    parts += ["## Sources and licences", ""]
    parts += table(("source", "what was read", "rows", "sha256 (first 16)", "licence"), _read(curated))
    for source, turns in curated.cut_turns.items():
        cut = f"{turns:,} prompts of {cell(source)} ended with the assistant's turn, which is the solution: it was cut."
        parts += ["", cut]
    parts += ["", *_duplicates(curated, curate), *_quality(curated, curate.quality, seed)]
    parts += [*_overlap(curated, curate), *_dropped_examples(curated, seed)]
    if curated.rejected:
        parts += ["## Bad rows", "", *table(("where", "why"), ((r.shown, r.reason) for r in curated.rejected[:20]))]
        if len(curated.rejected) > 20:
            parts += ["", f"And {len(curated.rejected) - 20:,} more, in `data/curated/rejected.jsonl`."]
    return "\n".join(parts) + "\n"


def _read(curated: Curated) -> Iterable[tuple[str, ...]]:
    """A line a file: the same for equal files wherever they lie."""
    for number, row in enumerate((*curated.inputs, *curated.evaluation_inputs)):
        where = f"{row['name']} → {row['split']}" if row["split"] else row["name"]
        where = f"against {row['name']}" if number >= len(curated.inputs) else where
        files = row.get("files", {})
        if "generator" in row:
            files = {f"generator {row['generator']}, version {row['version']}": row}
        elif "hub" in row:
            at = f" at {row['commit'][:12]}" if row["commit"] else ""
            files = {f"hub {row['hub']}, {row['hub_split']}{at}": row}
        for name, file in files.items():
            yield where, name, f"{file['rows']:,}", file.get("sha256", "")[:16], row["licence"]


def _duplicates(curated: Curated, curate: Curate) -> list[str]:
    settings = curate.deduplicate
    rules = ["are equal after NFKC and case folding with white space left out"] if settings.exact else []
    if near := settings.near:
        numbers = "the same numbers and operators in both, " if near.same_numbers else ""
        rules.append(
            f"have a Jaccard similarity of {near.threshold:g} or more between {near.ngram}-gram shingles, "
            f"{numbers}an answer in common"
        )
    if not rules:
        return ["## Duplicates", "", "Deduplication is switched off.", ""]
    gone = [row for row in curated.dropped if row.reason in ("duplicate", "conflicting answers")]
    clusters = len({row.other for row in gone if row.reason == "duplicate"})
    return [
        "## Duplicates",
        "",
        f"Two rows are one when they {'; or '.join(rules)}. Test rows win over dev rows, those "
        "over training rows, then the first; no test row is dropped. Where answers to one question contradict each "
        "other no training row stays.",
        "",
        f"{len(gone):,} rows went; {clusters:,} rows won over others. `data/curated/dropped.jsonl` names the "
        "winner of each.",
        "",
        *_variants(curated),
    ]


def _variants(curated: Curated) -> list[str]:
    """Groups of similar rows that stay, with an example of each kind."""
    parts = []
    for difference in dict.fromkeys(group.difference for group in curated.variants):
        groups = [group for group in curated.variants if group.difference == difference]
        rows = sum(len(group.problems) for group in groups)
        parts += [f"{len(groups):,} groups of similar questions stay, {rows:,} rows: they differ in {difference}.", ""]
        for problem in islice(groups[0].problems, 2):
            parts += [f"- {code(problem.id)}: {code(problem.question, 200)}"]
        parts += [""]
    return [*parts, *(["`data/curated/variants.jsonl` lists all groups.", ""] if parts else [])]


def _quality(curated: Curated, quality: Quality | None, seed: int) -> list[str]:
    """The report's part about the gate: rows per rule, in training and held-out splits, and examples of each."""
    if quality is None:
        return []
    trained, held_out = (
        Counter(rule for row in curated.broken if (row.split in TRAINED) == of for rule in row.rules)
        for of in (True, False)
    )
    parts = [
        "## Quality",
        "",
        "Training rows that break a dropped rule go; rows of dev and test stay and are only counted. "
        "`data/curated/quality.jsonl` lists every row that breaks a rule.",
        "",
    ]
    rows = (
        (name, what, f"{trained[name]:,}", "dropped" if name in quality.drop else "reported", f"{held_out[name]:,}")
        for name, what in DESCRIPTIONS.items()
        if name != "majority" or quality.samples
    )
    parts += table(("rule", "a problem that", "training rows", "which are", "dev and test rows"), rows)
    for name in DESCRIPTIONS:
        at = [number for number, row in enumerate(curated.broken) if name in row.rules]
        if at:
            parts += ["", f"### {name} ({len(at):,})", ""]
            for problem in map(curated.broken.__getitem__, random.Random(seed).sample(at, min(EXAMPLES, len(at)))):
                answers = ", ".join(problem.answers)
                parts += [f"- {code(problem.id)}: {code(problem.question, 300)} (answer: {code(answers, 60)})"]
    return [*parts, ""]


def _overlap(curated: Curated, curate: Curate) -> list[str]:
    settings = curate.decontaminate
    if settings is None:
        return ["## Overlap with evaluation sets", "", "Decontamination is switched off.", ""]
    rule = (
        f"A row of sft or rl goes when it shares {settings.ngram} grams in a row with an evaluation question or "
        "answer text (evaluation texts of 3 to "
        f"{settings.ngram - 1} grams: as a whole), and the share of the hit ({SHARES[settings.share]}) is at least "
        f"{settings.min_share:g}. "
        "Every hit stands in `data/curated/hits.jsonl`, by falling share, those too that let the row stay "
        "(`dropped: false`): low shares are often boilerplate, which `decontaminate.min_share` lets stay."
    )
    if curated.alike:
        rule += " Problems of one generator or template are not compared by grams: they share phrases and all differ."
    parts = ["## Overlap with evaluation sets", "", rule, ""]
    if curated.overlap:
        rows = ((train, against, f"{count:,}") for (train, against), count in sorted(curated.overlap.items()))
        parts += table(("training source", "evaluation set", "rows hit"), rows)
    else:
        parts += ["No hit large enough to drop a row." if curated.hits else "No hit."]
    if curated.hits:
        went, stay = (
            Counter(min(9, int(hit.share * 10)) for hit in curated.hits if hit.is_dropped(settings.min_share) == large)
            for large in (True, False)
        )
        shares = (
            (f"{b / 10:.1f} to {(b + 1) / 10:.1f}", f"{went[b]:,}", f"{stay[b]:,}")
            for b in sorted(went | stay, reverse=True)
        )
        parts += ["", *table(("share", "rows that went", "rows that stay"), shares)]
    parts += _chance_matches(curated)
    if curated.too_short:
        short = len(curated.too_short)
        parts += ["", f"{short:,} evaluation texts have under 3 grams; exact equality alone guards them."]
    if barred := curated.solutions_barred:
        parts += [
            "",
            f"{barred:,} rows are barred from `sft_share` and stay in rl: an evaluation text has their solution.",
        ]
    return [*parts, ""]


def _chance_matches(curated: Curated) -> list[str]:
    """What to look at where a tenth of a source went for evaluation texts that are short."""
    rows = Counter(row.source for row in curated.dropped if row.split in TRAINED)
    for name in TRAINED:
        rows.update(curated.splits[name].count_by_source())
    return [
        f"\n**{count:,} of {rows[source]:,} rows of {cell(source)} hold a short evaluation text whole.** Where the "
        "questions are formulas, as a generator's are, that is often chance: see `data/curated/hits.jsonl`. "
        "Rows of your own generator need no decontamination (`curate.decontaminate=null`); duplicates go all "
        "the same."
        for source, count in sorted(curated.matched_whole.items())
        if count and count >= CHANCE_SHARE * rows[source]
    ]


def _dropped_examples(curated: Curated, seed: int) -> list[str]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(curated.dropped):
        by_reason[row.reason].append(number)
    parts = []
    for reason, at in sorted(by_reason.items()):
        parts += [f"## Dropped: {reason} ({len(at):,})", ""]
        for row in map(curated.dropped.__getitem__, random.Random(seed).sample(at, min(EXAMPLES, len(at)))):
            parts += [f"- {code(row.id)} for {code(str(row.other))} ({cell(row.detail)})", ""]
            parts += [f"  > {code(row.question, 300)}", ""]
    return parts


def _draw_levels(file: Path, splits: dict[str, StoredProblems]) -> None:
    shown = [split for split in SPLITS if splits[split]]
    level_counts = {split: Counter(splits[split].levels().tolist()) for split in shown}
    with picture(file, 7, 3.6) as axes:
        levels = sorted({level for counts in level_counts.values() for level in counts})
        width = 0.8 / max(1, len(shown))
        for i, split in enumerate(shown):
            heights = [level_counts[split][level] / len(splits[split]) for level in levels]
            at = [x + (i - (len(shown) - 1) / 2) * width for x in range(len(levels))]
            axes.bar(at, heights, width, color=COLOURS[split], label=f"{split} ({len(splits[split]):,})")
        axes.set_xticks(range(len(levels)), ["none" if level < 0 else str(level) for level in levels])
        axes.set(xlabel="level", ylabel="share of the split", title="Levels")
        axes.figure.legend(loc="outside right center")
