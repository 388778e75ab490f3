"""The README's map of the house, from every module's first line: `python docs/house_map.py` rewrites it."""

import ast
import subprocess
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
START, END = "```text\n", "```"
HEADING = "## The house"
WIDTH = 112

# From the roof down, as the floors lie.
ROOMS = (
    "flows", "tasks", "mathrl/cli", "mathrl/stages", "mathrl/sweeps", "mathrl/trainers", "mathrl/evaluation",
    "mathrl/rollout", "mathrl/algorithms", "mathrl/data", "mathrl/rewards", "mathrl/models",
    "mathrl/tracking", "mathrl/params", "mathrl/core",
)  # fmt: skip
OTHERS = {
    "params/": "the parameters, one YAML file a section; presets/ go over them",
    "dvc.yaml": "the pipeline's stages, what each depends on and makes",
    "pipelines/": "the DVC files beside the main one: controls, pages, suite, and one per recipe",
    "prefect.yaml": "the flows' deployments",
    "benchmarks/": "measurements with their peers, each in one run",
    "docs/": "pages and pictures",
    "tests/": "the same tree as above",
}


def caption(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def house_map() -> str:
    listed = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [ROOT / name for name in listed if name.endswith(".py") and (ROOT / name).exists()]
    lines: list[str] = []
    for room in ROOMS:
        lines += _line(room + "/", caption(ROOT / room / "__init__.py"), 0)
        for file in files:
            if file.is_relative_to(ROOT / room) and file.name != "__init__.py":
                lines += _line(file.relative_to(ROOT / room).as_posix(), caption(file), 2)
    for name, text in OTHERS.items():
        lines += _line(name, text, 0)
    return "\n".join(lines) + "\n"


def _line(name: str, text: str, indent: int) -> list[str]:
    head = " " * indent + name
    column = 30
    start = head.ljust(column) if len(head) < column else head + "  "
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * column, break_on_hyphens=False)


def with_map(readme: str) -> str:
    """The README with its map up to date."""
    before, heading, rest = readme.partition(HEADING)
    lead, start, old = rest.partition(START)
    _, end, after = old.partition(END)
    return before + heading + lead + start + house_map() + end + after


if __name__ == "__main__":
    README.write_text(with_map(README.read_text(encoding="utf-8")), encoding="utf-8")
