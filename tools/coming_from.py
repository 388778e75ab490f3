"""The tables of docs/reference/coming_from.md: names of parameters and metrics in other trainers, and mathrl's.

From mathrl/params/other_trainers.yaml and the tables of the engines.
"""

from collections.abc import Iterable
from pathlib import Path

from mathrl.params.other_trainers import TRAINERS, OtherName, engine_names, file_names, metric_names, parameter_names

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "coming_from.md"
START, END = "<!-- verl and the others by their own names -->\n", "<!-- end -->"


def table(kind: str, rows: Iterable[OtherName], trainer: str) -> list[str]:
    """A row per meaning; names that mean the same parameter, with the same note, share it."""
    meanings: dict[tuple[str, str], list[str]] = {}
    for row in sorted({row.name: row for row in rows if row.trainer == trainer}.values(), key=lambda row: row.name):
        differs = "another definition: an import keeps its values under its own name alone" * (row.value == "differs")
        meanings.setdefault((row.ours, "; ".join(filter(None, (row.note, differs)))), []).append(f"`{row.name}`")
    return [
        f"| {trainer}'s {kind} | mathrl | |",
        "|---|---|---|",
        *(
            f"| {', '.join(names)} | {f'`{ours}`' if ours else 'none'} | {_cell(note)} |"
            for (ours, note), names in meanings.items()
        ),
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def repeated() -> list[str]:
    """Names of the file that say no more than an engine's table."""
    engines = {(row.trainer, row.name, row.ours) for row in engine_names()}
    return [
        f"{row.trainer}: {row.name}"
        for row in file_names()
        if (row.trainer, row.name, row.ours) in engines and not row.note
    ]


def tables() -> str:
    lines = []
    for trainer in TRAINERS:
        lines += [
            f"## {trainer}",
            "",
            *table("parameter", parameter_names(), trainer),
            *table("metric", metric_names(), trainer),
        ]
    return "\n".join(lines)


def up_to_date(page: str) -> str:
    """The page with its tables as the code has them."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    return before + start + tables() + end + after


def main() -> None:
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
