"""The tables of docs/gpu.md from a folder of results, between its markers; nothing there is written by hand."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- measured by make gpu -->", "<!-- end -->"
NOTHING = "Nothing has been measured on a GPU yet. `make gpu` fills this section."
# Published figures to compare with: what, tokens per second, MFU, on what, source.
YARDSTICKS = (
    ("prime-rl, RL update, Qwen3-0.6B, rows of 16k", "11,900", "11.1 %", "one H100", "prime-rl, benchmarks/"),
    ("prime-rl, SFT, Qwen3-0.6B", "25,500", "", "one H100", "prime-rl, benchmarks/"),
)


def write_tables(results: Path, page: Path) -> None:
    """Replace what is between the page's markers by the tables of `results`.

    Raises:
        ValueError: the page has no markers.
    """
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise ValueError(f"{page}: needs the lines {START} and {END}, between which the tables are written")
    page.write_text(f"{before}{START}\n\n{tables(results)}\n\n{END}{after}", encoding="utf-8")


def tables(results: Path) -> str:
    """Markdown of all parts that have a result."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    if "machine" not in found:
        return NOTHING
    sections = [machine_line(found["machine"])]
    for title, name in (("Correctness", "correctness"), ("ZeRO on one GPU", "zero"), ("verl", "verl")):
        if name in found:
            sections.append(f"### {title}\n\n" + check_table(found[name]["checks"]))
    updates = [row for name, result in found.items() if name.startswith("update-") for row in result["rows"]]
    skipped = [
        result["skipped"] for name, result in found.items() if name.startswith("update-") and "skipped" in result
    ]
    if updates or skipped:
        sections.append(
            "### Policy update\n\n" + update_table(updates) + "".join(f"\n\nNot run: {why}." for why in skipped)
        )
    steps = [result for name, result in found.items() if name.startswith("step-")]
    if steps:
        sections.append(
            "### A GRPO step at 0.5B: 128 prompts of 128 tokens, 8 responses of 512 tokens each\n\n" + step_table(steps)
        )
    return "\n\n".join(sections)


def machine_line(facts: dict[str, Any]) -> str:
    parts = [
        f"Measured on {facts['date']} on one **{facts['device']}** ({facts['memory_gib']:.0f} GiB),",
        f"driver {facts['driver']}, torch {facts['torch']}, Python {facts['python']}.",
        f"The rates that MFU refers to: bfloat16 products {facts['bfloat16_flops'] / 1e12:,.0f} TFLOP/s, TF32",
        f"{facts['tf32_flops'] / 1e12:,.0f}, float32 {facts['float32_flops'] / 1e12:,.0f},",
        f"copies {facts['copy_bytes_per_s'] / 1e12:.2f} TB/s.",
    ]
    return "\n".join(parts)


def check_table(checks: Sequence[dict[str, Any]]) -> str:
    rows = [
        (row["name"], f"{row['value']:.3g}", f"{row['limit']:.3g}", "yes" if row["value"] <= row["limit"] else "**no**")
        for row in checks
    ]
    return table(("check", "value", "limit", "within"), rows)


def update_table(updates: Sequence[dict[str, Any]]) -> str:
    rows: list[Sequence[str]] = []
    for row in updates:
        start = (row["shape"], f"{row['row']:,}", "yes" if row["checkpointing"] else "no")
        if "refused" in row:
            rows.append((*start, row["refused"][:60], "", "", "", ""))
            continue
        nominal = f"{row['mfu_nominal']:.1%}" if row["mfu_nominal"] else ""
        rows.append((
            *start, f"{row['tokens_per_s']:,.0f}", f"{row['mfu']:.1%}", nominal, f"{row['peak_gib']:.1f}",
            f"{row['planned_gib']:.1f}",
        ))  # fmt: skip
    measured = table(
        (
            "model",
            "tokens per row",
            "checkpointing",
            "tokens/s",
            "MFU",
            "MFU of the maker's rate",
            "peak GiB",
            "planned GiB",
        ),
        rows,
    )
    published = table(("published, to compare with", "tokens/s", "MFU", "on", "source"), YARDSTICKS)
    return f"{measured}\n\n{published}"


def step_table(steps: Sequence[dict[str, Any]]) -> str:
    parts = list(steps[0]["seconds"])
    rows = [
        (
            result["engine"],
            *(f"{result['seconds'][part]:.2f}" for part in parts),
            f"{result['sampled_tokens_per_s']:,.0f}",
            f"{result['trained_tokens_per_s']:,.0f}",
            f"{result['peak_gib']:.1f}",
            f"{result['planned_gib']:.1f}",
        )
        for result in steps
    ]
    heads = (
        "engine",
        *(f"{part}, s" for part in parts),
        "sampled tokens/s",
        "trained tokens/s",
        "peak GiB",
        "planned GiB",
    )
    return table(heads, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
