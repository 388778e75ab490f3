"""The tables of docs/reference/engines.md: what a training engine makes of each parameter, and what it refuses."""

from pathlib import Path

from mathrl.params.engines import TRL_RL, TRL_SFT, VERL_RL
from mathrl.params.training import Meaning, yaml_value

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "engines.md"
TABLES = {"trl sft": TRL_SFT, "trl rl": TRL_RL, "verl rl": VERL_RL}


def table(engine: str, meanings: tuple[Meaning, ...]) -> str:
    """A row per meaning; parameters that mean the same to the engine, with the same values, share it."""
    shared: dict[tuple[str, str], list[str]] = {}
    for meaning in meanings:
        only = ", ".join(f"`{yaml_value(value)}`" for value in meaning.only)
        values = f"{only}: {meaning.instead}" if only else "all"
        shared.setdefault((meaning.becomes, values), []).append(f"`{meaning.setting}`")
    rows = [f"| parameter | with {engine} | values |", "|---|---|---|"]
    rows += [f"| {', '.join(settings)} | {becomes} | {values} |" for (becomes, values), settings in shared.items()]
    return "\n".join(rows) + "\n"


def up_to_date(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, meanings in TABLES.items():
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = before + start + table({"trl": "TRL"}.get(name.split()[0], "verl"), meanings) + end + after
    return page


def main() -> None:
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
