"""Files outside the checkout: DVC and `mathrl run` notice when they change."""

import json
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.tasks.workspace import link_inputs

Checkout = Any
SOURCES = """sources:
  - {type: file, name: own, path: FOLDER, split: rl}
deduplicate: {exact: true}
decontaminate: null
"""


def write(file: Path, *questions: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"question": each, "answer": "1"}) + "\n" for each in questions))


@pytest.fixture(scope="module")
def own(real_checkout: Checkout, tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> tuple[Checkout, Path]:
    """A checkout that curates the files of a folder, once curated."""
    folder = tmp_path_factory.mktemp("own")
    write(folder / "a.jsonl", "A?")
    (real_checkout.folder / "params" / "curate.yaml").write_text(SOURCES.replace("FOLDER", str(folder)))
    real_checkout.git("add", "params")
    real_checkout.git("commit", "-q", "-am", "own files")
    real_checkout.use_python(warm_python)
    real_checkout.env["MATHRL_MIRROR"] = "none"  # nothing is shown in MLflow here
    real_checkout.repro("curate")
    return real_checkout, folder


def curated(checkout: Checkout) -> list[str]:
    lines = (checkout.folder / "data" / "curated" / "rl.jsonl").read_text().splitlines()
    return [json.loads(line)["question"] for line in lines]


def link(checkout: Checkout) -> None:
    """What `mathrl run curate` does before DVC looks."""
    code = (
        "import os; from pathlib import Path; from mathrl.compose import load_params; "
        "from tasks.workspace import link_inputs; "
        "link_inputs(Path.cwd(), ['curate', 'sft', 'evaluate'], load_params(), os.environ)"
    )
    checkout.run(checkout.executable, "-c", code)


def test_a_plain_repro_notices_a_file_with_other_bytes(own: tuple[Checkout, Path]) -> None:
    checkout, folder = own
    assert curated(checkout) == ["A?"]
    assert "up to date" in checkout.run("dvc", "status", "curate").stdout
    assert checkout.git("status", "--porcelain", "--", "data/inputs") == "", "links are no matter for git"
    write(folder / "a.jsonl", "A?", "B?")
    assert "data/inputs/curate" in checkout.run("dvc", "status", "curate").stdout
    checkout.repro("curate")
    assert curated(checkout) == ["A?", "B?"]


def test_a_further_file_and_one_that_is_gone_are_noticed_by_a_run(own: tuple[Checkout, Path]) -> None:
    checkout, folder = own
    write(folder / "b" / "a.jsonl", "C?")
    link(checkout)
    checkout.repro("curate")
    assert "C?" in curated(checkout)
    (folder / "b" / "a.jsonl").unlink()
    link(checkout)
    assert "data/inputs/curate" in checkout.run("dvc", "status", "curate").stdout
    links = [path for path in (checkout.folder / "data/inputs/curate").rglob("*") if path.is_symlink()]
    assert [path.readlink() for path in links] == [folder / "a.jsonl"]


def test_a_source_that_is_gone_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = Path(__file__).parents[2] / "params"
    given = load_params(params, overrides=["pages.files=[/nowhere/pages.jsonl]"])
    (tmp_path / "params").symlink_to(params)
    link_inputs(tmp_path, ["curate", "evaluate"], given, {})  # all generated: nothing is started
    with pytest.raises(UserError, match=r"^params/pages.yaml: files names no file; write the paths"):
        link_inputs(Path(__file__).parents[2], ["pages"], given, {})
