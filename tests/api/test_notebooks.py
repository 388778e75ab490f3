"""The notebooks of docs/notebooks run in a small project, without a network; they are kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.timeout(1200)


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["follow_runs", "grade_and_audit", "look_at_data"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, small_project: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit it"
    limits = {"timeout": 240, "startup_timeout": 600, "iopub_timeout": 240}
    place = {"metadata": {"path": str(small_project)}}
    NotebookClient(notebook, kernel_name="python3", resources=place, **limits).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert len(shown) >= 4 and not [each for each in shown if each.output_type == "error"]
