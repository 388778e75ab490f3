"""The map in docs/reference/house.md: `python tools/house_map.py` rewrites it.

The floors come from the import contracts of pyproject.toml, the descriptions from the first line of every module.
"""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "house.md"
COLUMN = 30

# What the repository holds beside its rooms.
OTHERS = {
    "params/": "the parameters, one YAML file per section, with presets/ and recipes/",
    "dvc.yaml": "the pipeline: what each stage depends on and what it makes",
    "pipelines/": "the DVC graphs beside the main one, which appear where they are asked for",
    "prefect.yaml": "the deployments of the flows",
    "mlflow/": "scripts that serve MLflow; configuration only, never a package",
    "benchmarks/": "measurements beside those of a peer, both from one run",
    "tools/": "scripts that write pages, references and figures",
    "docs/": "pages and pictures",
    "tests/": "the same tree as above",
}


def floors() -> list[list[str]]:
    """The rooms per floor, top floor first, as folders: [["mathrl/cli"], ["flows"], …, ["mathrl/core"]]."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = settings["contracts"][0]["layers"]
    return [[folder_of(room) for room in layer.split(" | ")] for layer in layers]


def folder_of(room: str) -> str:
    """The room's folder: flows/ and tasks/ stand at the top, and mathrl/ has links to them."""
    return room if room in ("flows", "tasks") else f"mathrl/{room}"


def caption(file: Path) -> str:
    """The first sentence or paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def repository_files(*patterns: str) -> list[str]:
    """The files of these patterns, those of the next commit included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in set(listed.stdout.splitlines()) if (ROOT / name).exists())


def rooms_map() -> str:
    """Every room, with the number of its floor, and its modules, a line each; the top floor first."""
    layers = floors()
    heights = {room: len(layers) - place for place, rooms in enumerate(layers) for room in rooms}
    rooms = list(heights)
    files = [ROOT / name for name in repository_files(*rooms) if name.endswith(".py")]
    lines: list[str] = []
    for room in rooms:
        lines.append(_line(f"{heights[room]:>2} {room}/", caption(ROOT / room / "__init__.py")))
        for file in files:
            if file.is_relative_to(ROOT / room) and file.name != "__init__.py":
                lines.append(_line("     " + file.relative_to(ROOT / room).as_posix(), first_sentence(caption(file))))
    lines += [_line(name, text) for name, text in OTHERS.items()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def first_sentence(text: str) -> str:
    """A caption up to its first full stop.

    >>> first_sentence("Verdicts on answers: text in, verdict out. Needs no torch.")
    'Verdicts on answers: text in, verdict out.'
    """
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _line(name: str, text: str) -> str:
    return f"{name.ljust(COLUMN - 1)} {text}"


def up_to_date(page: str) -> str:
    """The page with its map written from the code as it is now."""
    before, start, rest = page.partition("<!-- map -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + start + rooms_map() + end + after


def main() -> None:
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
