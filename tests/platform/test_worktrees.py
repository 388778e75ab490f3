"""Worktrees under runs/: they have the checkout's DVC, and stay while somebody works in them."""

import json
import random
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.files import write_json
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.params.load import read_yaml
from mathrl.tasks import sweep
from mathrl.tasks.workspace import Workspace, hold_workspace, in_use, prune, uncommitted_files

Checkout = Any
PREPARE = "from tasks.workspace import prepare; print(prepare('rl', None, ['rl.optimizer.lr={}']).folder)"


def made(checkout: Checkout, lr: str) -> Path:
    return Path(checkout.python(PREPARE.format(lr)).strip())


ASK = """
import json, sys
from pathlib import Path
from mathrl.compose import load_params
from mathrl.tasks.workspace import prepare
for preset, overrides in json.loads(sys.argv[1]):
    made = prepare("rl", preset, overrides, allow_dirty=True)
    ran = load_params(made.folder / "params").model_dump(mode="json", by_alias=True)
    assert made.params.model_dump(mode="json", by_alias=True) == ran, "what it is called is what it does"
    assert (made.preset, list(made.overrides)) == (preset, overrides) or made.folder == Path.cwd()
    print(json.dumps(ran))
"""
VALUES: dict[str, list[Any]] = {
    "rl.optimizer.lr": [1e-4, 2e-4, 5e-4], "rl.group_size": [4, 8], "rl.steps": [3, 50], "rl.temperature": [0.7, 1.0],
    "run.seed": [0, 3], "mix.order": ["shuffled", "easy_to_hard"],
}  # fmt: skip


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


@contextmanager
def uncommitted_edits(checkout: Checkout) -> Iterator[None]:
    """The checkout's params/ say something else than HEAD's, of some parameters what is asked for below."""
    checkout.python(
        "from mathrl.compose import load_params, write_params; "
        "write_params(load_params(), load_params(overrides=['rl.optimizer.lr=2e-4', 'rl.group_size=8', 'run.seed=3']))"
    )
    preset = checkout.folder / "params" / "presets" / "mine.yaml"
    preset.parent.mkdir()
    preset.write_text("help: mine\nrl: {steps: 7, optimizer: {lr: 2.0e-4, beta2: 0.9}}\nrun: {seed: 3}\n")
    yield
    checkout.restore_params()


def test_what_is_asked_for_is_what_runs_whatever_is_uncommitted(checkout: Checkout) -> None:
    """Each override, and each value of a preset, is in the parameters that the stage loads; the rest is HEAD's."""
    rng = random.Random(5)
    cases: list[tuple[str | None, list[str]]] = [(None, ["rl.optimizer.lr=2e-4", "rl.group_size=8", "rl.steps=3"])]
    for _ in range(12):
        chosen = rng.sample(sorted(VALUES), rng.randrange(1, 4))
        cases.append((rng.choice([None, "mine"]), [f"{key}={json.dumps(rng.choice(VALUES[key]))}" for key in chosen]))
    head = load_params(checkout.folder / "params").model_dump(mode="json", by_alias=True)
    with uncommitted_edits(checkout):
        edited = load_params(checkout.folder / "params").model_dump(mode="json", by_alias=True)
        mine = read_yaml(checkout.folder / "params" / "presets" / "mine.yaml")
        del mine["help"]
        mine = dict(leaves(mine))
        done = checkout.run(checkout.executable, "-c", ASK, json.dumps(cases))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases)
    for (preset, overrides), ran in zip(cases, rows, strict=True):
        asked = (mine if preset else {}) | {
            key: json.loads(value) for key, value in (override.split("=") for override in overrides)
        }
        for key, value in asked.items():
            assert at(ran, key) == value, (key, preset, overrides)
        in_checkout = all(at(edited, key) == value for key, value in asked.items())
        rest = dict(leaves(edited if in_checkout else head))
        assert {key: value for key, value in leaves(ran) if key not in asked} == {
            key: value for key, value in rest.items() if key not in asked
        }
    checkout.mathrl("runs", "remove", "all")


def test_worktrees_without_a_run_are_listed_by_age(checkout: Checkout) -> None:
    names = [f"rl-{letter}" for letter in "fbdace"]
    for made, name in enumerate(names):
        note = {"overrides": ["rl.steps=3"], "made": made, "commit": "0", "run": "rl"}
        write_json(checkout.folder / "runs" / name / WORKTREE_NOTE, note)
    printed = checkout.mathrl("runs").stdout
    for name in names:
        shutil.rmtree(checkout.folder / "runs" / name)
    found = re.findall(r"also under runs/: (rl-[a-f]) of", printed)
    assert found == names


def test_what_is_appended_to_a_list_is_appended_once_however_often_a_run_is_started(checkout: Checkout) -> None:
    asked = "prepare('rl', None, ['reward.parts+=[{type: format_lines}]']).params.reward.parts"
    code = f"from tasks.workspace import prepare; print(*([part.type for part in {asked}] for _ in range(2)), sep='/')"
    first, again = checkout.python(code).strip().split("/")
    assert first == again and first.count("format_lines") == 1


def test_uncommitted_files_are_named_as_they_are(checkout: Checkout) -> None:
    odd = checkout.folder / "tasks" / 'two words "ä".py'
    odd.write_text("")
    (checkout.folder / "notes.txt").write_text("no code")
    checkout.git("mv", "flows/curate.py", "flows/renamed -> x.py")
    try:
        assert sorted(uncommitted_files(checkout.folder)) == [
            "flows/curate.py", "flows/renamed -> x.py", 'tasks/two words "ä".py'
        ]  # fmt: skip
    finally:
        checkout.git("reset", "-q", "--hard")
        odd.unlink()
        (checkout.folder / "notes.txt").unlink()


@contextmanager
def local_settings(checkout: Checkout) -> Iterator[None]:
    """What a person has set for this machine alone; relative paths are from the checkout."""
    for words in (
        ["cache", "dir", "--local", "../big-disk"],
        ["remote", "add", "--local", "-d", "store", "../store"],
        ["remote", "add", "--local", "web", "https://data.example/x"],
        ["remote", "modify", "--local", "web", "password", "s3cret"],
    ):
        checkout.run("dvc", *words)
    file = checkout.folder / ".dvc" / "config.local"
    file.chmod(0o600)
    yield
    file.unlink()


def test_a_worktree_has_the_cache_the_remotes_and_the_credentials_of_the_checkout(checkout: Checkout) -> None:
    with local_settings(checkout):
        folder = made(checkout, "1e-4")
    outside = checkout.folder.parent
    assert Path(checkout.run("dvc", "cache", "dir", cwd=folder).stdout.strip()) == outside / "big-disk"
    remotes = checkout.run("dvc", "remote", "list", cwd=folder).stdout
    assert "https://data.example/x" in remotes
    (store,) = [line.split()[1] for line in remotes.splitlines() if line.startswith("store")]
    assert (folder / store).resolve() == outside / "store"
    assert checkout.run("dvc", "config", "remote.web.password", cwd=folder).stdout.strip() == "s3cret"
    assert stat.S_IMODE((folder / ".dvc" / "config.local").stat().st_mode) == 0o600
    assert checkout.run("git", "status", "--porcelain", "--", ".dvc", cwd=folder).stdout == ""
    plain = made(checkout, "2e-4")
    shared = Path(checkout.run("dvc", "cache", "dir", cwd=plain).stdout.strip())
    assert shared == checkout.folder / ".dvc" / "cache"


def test_a_worktree_in_which_a_run_is_at_work_is_not_pruned(checkout: Checkout) -> None:
    busy, idle = made(checkout, "3e-4"), made(checkout, "4e-4")
    with in_use(busy), hold_workspace(Workspace(busy, None), print):  # type: ignore[arg-type]
        refused = checkout.mathrl("runs", "remove", busy.name, ok=False)
        assert refused.returncode == 2
        assert refused.stderr == f"error: {busy.name} is running: cancel it first\n"
        refused = checkout.mathrl("runs", "remove", "all", ok=False)
        assert refused.returncode == 2 and f"{busy.name} is running" in refused.stderr
        assert busy.is_dir() and not idle.exists()
    assert f"removed {busy.name}" in checkout.mathrl("runs", "remove", "all").stdout
    assert not busy.exists()


def test_a_sweep_holds_its_worktree(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(checkout, "5e-4")
    pruned: list[bool] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sweep, "main_checkout", lambda: checkout.folder)
    monkeypatch.setattr(sweep, "name_run", lambda *_: [])  # no flow runs here
    monkeypatch.setattr(sweep, "workspace", lambda *_, **__: folder)
    monkeypatch.setattr(sweep, "follow", lambda *_: pruned.append(prune(checkout.folder, folder)))
    given = {"MATHRL_HOME": str(checkout.home), "MATHRL_MIRROR": "none", "MATHRL_CONSOLE": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    sweep.run_sweep(preset=None, sections={}, overrides=[], compare=False, allow_dirty=False)
    assert pruned == [False] and folder.is_dir()
