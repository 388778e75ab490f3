"""The code as a value: what changes it and what does not, in a checkout, in a release, and in a project's own code."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mathrl.core import code_values as module
from mathrl.core.code_values import changed_code, code_values, keep_results, read_code, stage_code, write_code
from mathrl.core.errors import UserError

CODE = {
    "stages/rl.py": (
        "from math import floor\n\nfrom mathrl.trainers.loop import train\n\nPROGRAM = \"mathrl.grading.child\"\n\n\n"
        "def work(run):\n    return train(run, floor(2.5))\n"
    ),
    "grading/child.py": "LIMIT = 1\n",
    "stages/sft.py": "from mathrl.models.load import load\n\n\ndef work(run):\n    return load(run)\n",
    "stages/resolve.py": "from mathrl.compose.load import read\n",
    "compose/load.py": "def read():\n    return 1\n",
    "params/schema.py": "STEPS = 3\n",
    "planning/plan.py": "FITS = True\n",
    "trainers/loop.py": (
        '"""The loop."""\n\nfrom mathrl.core.shared import shared\nfrom mathrl.models.load import load\n\n\n'
        'def train(run, steps):\n    """Trains."""\n    return [load(run) for _ in range(steps)]\n'
    ),
    "models/load.py": "# Loads.\ndef load(run):\n    return f\"{run!r:>3}\"\n",
    "core/shared.py": "def shared():\n    return 1\n",
    "models/names.yaml": "a: 1\n",
}  # fmt: skip
NUMBERS = "resolve = 1\nsft = 4\nrl = 2\n"
Edit = Callable[[str, Callable[[str], str]], None]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout of mathrl, and in it a project."""
    package = tmp_path / "source" / "mathrl"
    for name, text in CODE.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
        (package / name).with_name("__init__.py").write_text("")
    (package / "__init__.py").write_text('__version__ = "0.1"\n')
    (package / "stages" / "results.toml").write_text(NUMBERS)
    (tmp_path / "source" / "pyproject.toml").write_text("")
    monkeypatch.setattr(module, "PACKAGE", package)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    (project / "params").mkdir(parents=True)
    monkeypatch.chdir(project)
    return package


def changed(checkout: Path, name: str, edit: Callable[[str], str]) -> set[str]:
    """The stages whose value an edit of a file changes."""
    before = code_values()
    file = checkout / name
    text = edit(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    after = code_values()
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("models/load.py", lambda text: text.replace("# Loads.", "# Loads a model.")),
        ("trainers/loop.py", lambda text: text.replace('"""Trains."""', '"""Trains a model."""')),
        ("trainers/loop.py", lambda text: text.replace('    """Trains."""\n', "")),
        ("trainers/loop.py", lambda text: text.replace("[load(run) for _ in", "[  # all\n        load(run) for _ in")),
        ("trainers/loop.py", lambda text: f"{text}\n\n# The end.\n"),
        ("core/shared.py", lambda text: text.replace("1", "2")),
        ("__init__.py", lambda text: text.replace("0.1", "0.2")),
    ],
)
def test_what_changes_no_result_changes_no_value(name: str, edit: Callable[[str], str], checkout: Path) -> None:
    assert changed(checkout, name, edit) == set()


@pytest.mark.parametrize(
    ("name", "edit", "stages"),
    [
        ("trainers/loop.py", lambda text: text.replace("range(steps)", "range(steps + 1)"), {"rl"}),
        ("stages/rl.py", lambda text: text.replace("2", "3"), {"rl"}),
        ("stages/rl.py", lambda text: text.replace("from math import floor", "from numpy import floor"), {"rl"}),
        ("stages/rl.py", lambda text: text.replace("import floor", "import ceil as floor"), {"rl"}),
        ("grading/child.py", lambda text: text.replace("1", "2"), {"rl"}),  # a process that the stage starts
        ("models/load.py", lambda text: text.replace(">3", ">4"), {"rl", "sft"}),
        ("models/names.yaml", lambda text: text.replace("1", "2"), {"rl", "sft"}),
        ("params/schema.py", lambda text: text.replace("3", "4"), {"resolve"}),
        # Another function of the same name, from a file that is read anyway.
        ("trainers/loop.py", lambda text: text.replace("models.load import", "stages.sft import"), {"rl"}),
        ("stages/results.toml", lambda text: text.replace("rl = 2", "rl = 3"), {"rl"}),
    ],
)
def test_what_may_change_a_result_changes_the_value(
    name: str, edit: Callable[[str], str], stages: set[str], checkout: Path
) -> None:
    assert changed(checkout, name, edit) == stages


def test_a_file_that_is_moved_or_renamed_changes_no_value(checkout: Path) -> None:
    before = code_values()
    (checkout / "learners").mkdir()
    (checkout / "learners" / "__init__.py").write_text("")
    shutil.move(checkout / "models" / "load.py", checkout / "models" / "weights.py")
    shutil.move(checkout / "trainers" / "loop.py", checkout / "learners" / "loop.py")
    for file in checkout.rglob("*.py"):
        text = file.read_text().replace("mathrl.models.load", "mathrl.models.weights")
        file.write_text(text.replace("mathrl.trainers.loop", "mathrl.learners.loop"))
    assert code_values() == before


def test_one_stages_value_is_found_from_its_own_files(checkout: Path, tmp_path: Path) -> None:
    kept, parsed = tmp_path / "home" / "code-digests.json", list[int]()
    for stage in ("sft", "rl"):
        assert stage_code(stage)["value"]
        parsed.append(len(json.loads(kept.read_text())))
    values = code_values()
    assert 0 < parsed[0] < parsed[1] < len(json.loads(kept.read_text())), "what is kept of others stays"
    for stage in ("sft", "rl", "none"):
        assert stage_code(stage)["value"] == values.get(stage, "")


def test_a_release_has_its_numbers_alone(checkout: Path) -> None:
    (checkout.parent / "pyproject.toml").unlink()
    values = code_values()
    assert {stage: values[stage] for stage in ("own", "sft", "rl")} == {"own": "", "sft": "4", "rl": "2"}
    assert changed(checkout, "trainers/loop.py", lambda text: text.replace("(steps)", "(steps + 1)")) == set()
    assert changed(checkout, "stages/results.toml", lambda text: text.replace("rl = 2", "rl = 3")) == {"rl"}


def test_own_code_counts_where_a_parameter_names_it(checkout: Path) -> None:
    for name, text in {
        "pyproject.toml": '[tool.mathrl]\ncode = ["mine"]\n',
        "params/reward.yaml": "parts: [{type: function, options: {path: mine.rewards.short}}]\n",
        "mine/__init__.py": "",
        "mine/rewards.py": "from .words import count\n\n\ndef short(response, truth):\n    return -count(response)\n",
        "mine/words.py": "def count(text):\n    return len(text.split())\n",
        "mine/losses.py": "LOSS = 1\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    own = code_values()["own"]
    assert own
    Path("mine/losses.py").write_text("LOSS = 2\n")
    Path("mine/words.py").write_text('def count(text):\n    """Words."""\n    return len(text.split())\n')
    assert code_values()["own"] == own
    Path("mine/words.py").write_text("def count(text):\n    return len(text)\n")
    assert code_values()["own"] not in ("", own)
    Path("params/reward.yaml").write_text("parts: [{type: accuracy}]\n")
    Path("params/rl.yaml").mkdir()  # which loading the parameters refuses
    assert code_values()["own"] == ""
    Path("pyproject.toml").write_bytes('[tool.mathrl]\ncode = ["mine"]  # für uns\n'.encode("latin-1"))
    with pytest.raises(UserError, match=r"pyproject\.toml: not TOML: 'utf-8'"):
        code_values()


def test_the_file_is_written_when_a_value_changes_and_says_which(checkout: Path) -> None:
    assert write_code() == []  # nothing was there
    written = Path("code.yaml").read_bytes()
    time = Path("code.yaml").stat().st_mtime_ns
    assert write_code() == [] and Path("code.yaml").stat().st_mtime_ns == time
    loop = checkout / "trainers" / "loop.py"
    loop.write_text(loop.read_text().replace("(steps)", "(steps + 1)"))
    assert write_code() == ["rl"] and Path("code.yaml").read_bytes() != written
    assert read_code(Path("code.yaml")) == code_values() | {"model": ""}


def test_results_are_kept_until_the_code_changes_again(checkout: Path) -> None:
    write_code()
    before, loop = read_code(Path("code.yaml")), checkout / "trainers" / "loop.py"
    loop.write_text(loop.read_text().replace("(steps)", "(steps + 1)"))
    assert keep_results() == ["rl"]
    assert write_code() == [] and read_code(Path("code.yaml")) == before
    assert keep_results() == [] and write_code() == []  # again
    loop.write_text(loop.read_text().replace("steps + 1)", "steps + 2)"))
    assert write_code() == ["rl"] and read_code(Path("code.yaml")) == code_values() | {"model": ""}


def test_results_are_kept_also_after_a_look_has_written_the_new_values(checkout: Path) -> None:
    """A dry run and DVC's own status write code.yaml; dvc.lock says with which code the results were made."""
    write_code()
    before, loop = read_code(Path("code.yaml")), checkout / "trainers" / "loop.py"
    made = f"  rl:\n    cmd: python\n    params:\n      code.yaml:\n        own: ''\n        rl: {before['rl']}\n"
    made += "    outs:\n    - path: models/rl\n"
    Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n  mix:\n    cmd: python\n{made}")
    loop.write_text(loop.read_text().replace("(steps)", "(steps + 1)"))
    assert write_code() == ["rl"]
    assert changed_code() == {}, "a clone, in which nothing was made yet"
    Path("models/rl").mkdir(parents=True)
    assert list(changed_code()) == ["rl"]
    assert keep_results() == ["rl"] and changed_code() == {}
    assert write_code() == ["rl"] and read_code(Path("code.yaml")) == before, "as the results have it"
    Path("dvc.lock").write_text("schema: '2.0'\nstages:\n  rl:\n    cm")
    assert changed_code() == {}


def test_the_values_of_this_checkout_are_the_same_from_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("home", "home"):  # the second time from what the first has kept
        monkeypatch.setenv("MATHRL_HOME", str(tmp_path / name))
        found.append(code_values(tmp_path))
    assert found[0] == found[1]
    assert all(re.fullmatch(r"\d+ [0-9a-f]{16}", value) for stage, value in found[0].items() if stage != "own")
    assert len(set(found[0].values())) == len(found[0])


def test_what_runs_in_the_sandbox_counts_for_the_stages_that_sample() -> None:
    files = module._Files(module.PACKAGE.parent)
    for stage in ("rl", "evaluate"):
        reached = files.reachable_files([module.PACKAGE / "stages" / f"{stage}.py"])
        assert set((module.PACKAGE / "tools" / "inside").glob("*.py")) <= reached | {
            module.PACKAGE / "tools" / "inside" / "__init__.py"
        }
