"""The tables of benchmarks/gpu/README.md from a folder of results, between its markers; none is written by hand."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- measured by make gpu -->", "<!-- end -->"
NOTHING = "Nothing has been measured on a GPU yet. `make gpu` fills this page."
# Published figures to compare with: what, tokens per second, MFU, on what, source.
PRIME_RL = "prime-rl, benchmarks/baselines"
YARDSTICKS = (
    ("RL update, 0.6B, all weights, checkpointing, rows of 16k", "11,900", "11.1 %", "one H100", PRIME_RL),
    ("the same, rows of 65k", "", "26.8 %", "one H100", PRIME_RL),
    ("SFT, 0.6B, rows of 16k", "25,500", "23.7 %", "one H100", PRIME_RL),
)
STEP_YARDSTICK = (
    "To compare with: the log of verl's quick start (0.5B, PPO, 256 responses, a GPU without a name) has 21.5 s of "
    "rollouts, 4.4 of\nreference log-probs, 20.3 of the policy's update, and 68 s per step with its critic."
)
LONG_ROW = 16384


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
    sections = [machine_line(found["machine"]), "### Goals\n\n" + goal_table(found)]
    for title, name in (
        ("Correctness", "correctness"),
        ("ZeRO on one GPU", "zero"),
        ("FSDP on one GPU", "fsdp"),
        ("Small hardware", "small"),
        ("verl", "verl"),
    ):
        if "checks" in found.get(name, {}):
            sections.append(f"### {title}\n\n" + check_table(found[name]["checks"]))
    if found.get("small", {}).get("rows"):
        sections.append(
            "### QLoRA: updates with adapters on weights of 4 bits\n\n" + adapter_table(found["small"]["rows"])
        )
    updates = update_rows(found)
    if updates:
        sections.append("### Policy update\n\n" + update_table(updates))
    steps = [result for result in found.values() if "seconds" in result]
    if steps:
        sections.append(
            "### A GRPO step of `qwen2.5-0.5b-gsm8k`: 128 prompts of 128 tokens, 8 responses of 280 tokens each\n\n"
            f"{step_table(steps)}\n\n{STEP_YARDSTICK}"
        )
    if "rows" in found.get("transfer", {}):
        sections.append("### Weights to a server, 1.5B\n\n" + transfer_table(found["transfer"]["rows"]))
    skipped = [result["skipped"] for result in found.values() if "skipped" in result]
    if skipped:
        sections.append("Not run: " + "; ".join(skipped) + ".")
    return "\n\n".join(sections)


def transfer_table(ways: Sequence[dict[str, Any]]) -> str:
    """Seconds per sync, the median of those that count, and the rate of all."""
    rows = [
        (
            row["way"],
            f"{row['bytes'] / 1e9:.2f}",
            f"{sorted(row['seconds'])[len(row['seconds']) // 2]:.2f}",
            f"{row['bytes_per_s'] / 1e9:.2f}",
            row["digest"],
        )
        for row in ways
    ]
    return table(("weights by", "GB", "seconds", "GB/s", "digest"), rows)


def update_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for name, result in found.items() if name.startswith("update-") for row in result.get("rows", [])]


def goal_table(found: Mapping[str, Any]) -> str:
    """The goals of one H100 or H200, and whether these results reach them."""
    measured = [row for row in update_rows(found) if "refused" not in row]
    small = [mfu(row) for row in measured if row["shape"].startswith("0.5B") and row["row"] == 2048]
    large = [mfu(row) for row in measured if row["shape"].startswith(("1.5B", "7B")) and row["row"] >= LONG_ROW]
    peaks = [row["peak_gib"] for row in measured if row["shape"] == "1.5B" and row["row"] == 32768]
    steps = [
        sum(result["seconds"][part] for part in ("step", "sync")) for result in found.values() if "engine" in result
    ]
    goals: tuple[tuple[str, list[float], Callable[[float], str], float, bool], ...] = (
        ("update of 0.5B, rows of 2k: MFU at least", small, "{:.0%}".format, 0.20, True),
        ("update of 1.5B and 7B, rows of 16k and more: MFU at least", large, "{:.0%}".format, 0.40, True),
        ("step of the preset `qwen2.5-0.5b-gsm8k`: at most", steps, "{:.1f} s".format, 12.0, False),
        ("rows of 32k of a 1.5B model: at most", peaks, "{:.0f} GiB".format, 80e9 / 2**30, False),
    )
    rows = []
    for goal, values, text, limit, least in goals:
        best = (max if least else min)(values) if values else None
        reached = best is not None and (best >= limit if least else best <= limit)
        verdict = "not measured" if best is None else "yes" if reached else "**no**"
        rows.append((f"{goal} {text(limit)}", "" if best is None else text(best), verdict))
    return table(("goal", "best", "reached"), rows)


def mfu(row: Mapping[str, Any]) -> float:
    """Of the maker's rate, as published figures are, where it is known."""
    return float(row["mfu_nominal"] or row["mfu"])


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
    late = [row for row in updates if row.get("refused", "").startswith("not measured")]
    for row in (row for row in updates if row not in late):
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
    sentence = f"{len(late)} rows were not begun, for lack of time.\n\n" if late else ""
    return f"{measured}\n\n{sentence}{published}"


def adapter_table(updates: Sequence[dict[str, Any]]) -> str:
    rows = [
        (row["shape"], f"{row['row']:,}", *_figures(row)) if "refused" not in row
        else (row["shape"], f"{row['row']:,}", row["refused"][:60], "", "")
        for row in updates
    ]  # fmt: skip
    return table(("model", "tokens per row", "tokens/s", "peak GiB", "planned GiB"), rows)


def _figures(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{row['tokens_per_s']:,.0f}", f"{row['peak_gib']:.1f}", f"{row['planned_gib']:.1f}"


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
