"""The tables of docs/how_to/experiments.md, from the files of groups: `python tools/group_tables.py` rewrites them."""

from pathlib import Path

from mathrl.compose.names import KINDS, MAY_SET, file_names, help_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how_to" / "experiments.md"


def groups_table() -> str:
    lines = ["| choice | name | what it is |", "|---|---|---|"]
    for kind in KINDS:
        for name, file in file_names(Path("none"), kind).items():
            lines.append(f"| {kind} | [`{name}`](../../{file.relative_to(ROOT).as_posix()}) | {help_of(file)} |")
    return "\n".join(lines)


def may_set_table() -> str:
    lines = ["| group | may set |", "|---|---|"]
    lines += [f"| {kind} | {', '.join(f'`{path}`' for path in MAY_SET[kind])} |" for kind in KINDS]
    return "\n".join(lines)


def up_to_date(page: str) -> str:
    """The page with its tables written anew."""
    for mark, table in (("groups", groups_table()), ("may set", may_set_table())):
        before, _, rest = page.partition(f"<!-- {mark} -->\n")
        after = rest.partition(f"<!-- /{mark} -->")[2]
        page = f"{before}<!-- {mark} -->\n{table}\n<!-- /{mark} -->{after}"
    return page


def main() -> None:
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
