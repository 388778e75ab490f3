"""What works with the ten families: the cells that run here are as the table of docs/reference/models.md has them.

`python -m tests.models.test_families` runs every cell, DeepSpeed and vLLM where they are installed, and rewrites the
table (about five minutes, most of them for vLLM). With names of cells it runs those and writes nothing. The suite runs
DeepSpeed's cells in a process of their own, those that need two ranks in a program of theirs (`family_ranks`), and
vLLM's for two families (tests/engines/test_vllm.py).
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

import pytest

from tests.marks import needs_deepspeed
from tests.models.family_cells import CELLS, result

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end -->"
ROWS = {
    "qwen2.5": "Qwen 2.5",
    "qwen3": "Qwen 3",
    "qwen3.5": "Qwen 3.5",
    "llama3": "Llama 3",
    "gemma3": "Gemma 3",
    "mistral": "Mistral",
    "phi3": "Phi 3",
    "phi4": "Phi 4",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "smollm3": "SmolLM 3",
    "deepseek-llama": "DeepSeek R1 distills",
}
ENGINES = ("DeepSpeed", "vLLM")
HERE = [cell for cell in CELLS if cell not in ENGINES]
# In weights, norms or attention: the suite runs all cells of these, and the command all cells of all families.
MOST_UNLIKE = ("qwen3.5", "llama3", "gemma3", "phi4")


def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def on_the_page(family: str) -> dict[str, str]:
    """The family's row, by the names of its cells."""
    lines = [re.split(r"\s*\|\s*", line.strip("| ")) for line in section().splitlines() if line.startswith("|")]
    (row,) = (line for line in lines if line[0] == ROWS[family])
    return dict(zip(lines[0][1:], row[1:], strict=True))


def check(family: str, cells: dict[str, str]) -> None:
    """`cells` are results; a refusal stands in the table as one word and under it as a sentence."""
    page = on_the_page(family)
    for cell, value in cells.items():
        word, _, reason = value.partition(": ")
        assert (word, page[cell]) == (page[cell], word), f"{cell}: {value}; `python -m tests.models.test_families`?"
        assert reason in section()


@pytest.mark.parametrize("family", ROWS)
@pytest.mark.filterwarnings("ignore:.*cannot be packed")
def test_a_familys_cells_are_as_the_page_has_them(family: str) -> None:
    check(family, {cell: result(cell, family) for cell in (HERE if family in MOST_UNLIKE else ("log-probs", "export"))})


def of_ranks(
    folder: Path, families: Sequence[str], run_ranks: Callable[[Path, Mapping[Path, int]], None]
) -> dict[str, dict[str, str]]:
    """By family, the results of the cells that two ranks compute together."""
    (folder / "families").write_text("\n".join(families))
    run_ranks(Path(__file__).with_name("family_ranks.py"), {folder: 2})
    cells: dict[str, dict[str, str]] = json.loads((folder / "cells.json").read_text())
    return cells


def test_the_cells_of_two_ranks_are_as_the_page_has_them(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    results = of_ranks(tmp_path, MOST_UNLIKE, run_ranks)
    assert results.keys() == {*MOST_UNLIKE}
    for family, cells in results.items():
        check(family, cells)


@pytest.mark.engines
@needs_deepspeed
def test_deepspeeds_cells_are_as_the_page_has_them(run_program: Callable[..., str]) -> None:
    output = run_program(Path(__file__), "DeepSpeed")
    lines = re.findall(r"^(\S+), DeepSpeed: (.+)$", output, re.MULTILINE)
    assert [family for family, _ in lines] == list(ROWS)
    for family, value in lines:
        check(family, {"DeepSpeed": value})


def write(results: dict[str, dict[str, str]]) -> None:
    """Rewrite the table; a cell of an engine that is not installed stays as it is."""
    names = list(results[next(iter(ROWS))])
    lines = [f"| family | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    reasons: dict[str, list[str]] = {}
    for family, row in results.items():
        words = [value.partition(": ")[0] or on_the_page(family)[cell] for cell, value in row.items()]
        lines.append(f"| {ROWS[family]} | {' | '.join(words)} |")
        for cell, value in row.items():
            if value.startswith("refused: "):
                reasons.setdefault(value.removeprefix("refused: "), []).append(f"{cell} of {ROWS[family]}")
    refusals = [f"- {', '.join(cells)}: {reason}" for reason, cells in reasons.items()]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    table = "\n".join(lines + ([""] if refusals else []) + refusals)
    PAGE.write_text(f"{before}{BEGIN}{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    results: dict[str, dict[str, str]] = {family: {} for family in ROWS}
    for cell in sys.argv[1:] or CELLS:  # vLLM last: its process group stays
        for family in ROWS:
            results[family][cell] = result(cell, family)
            sys.stdout.write(f"{family}, {cell}: {results[family][cell]}\n")
    if not sys.argv[1:]:
        words = [sys.executable, "-m", "tests.forked_ranks", "tests.models.family_ranks"]
        with TemporaryDirectory() as made:
            of_two = of_ranks(
                Path(made), list(ROWS), lambda _, worlds: run([*words, *worlds, "2"], check=True) and None
            )
        for family, cells in of_two.items():
            results[family] |= cells
        write(results)
