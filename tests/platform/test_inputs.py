"""Files outside the checkout are noticed when they change; a project that is moved or copied finds its own."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mlflow
import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout, present_folder
from mathrl.tasks.workspace import link_inputs, reconnect
from mathrl.tracking.client import follow_move

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


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a worktree under runs/, as a run with overrides makes it."""
    folder = tmp_path / "first"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "kept.txt").write_text("kept\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    git(folder, "worktree", "add", "--quiet", "--detach", str(folder / "runs" / "rl-a"), "HEAD")
    return folder


def test_the_worktrees_of_a_moved_project_belong_to_it_again(project: Path) -> None:
    assert reconnect(project) == []
    moved = project.rename(project.with_name("second"))
    run = moved / "runs" / "rl-a"
    with pytest.raises(subprocess.CalledProcessError):
        git(run, "status")
    assert reconnect(moved) == [run] and reconnect(moved) == []
    assert git(run, "status", "--short") == "" and str(run) in git(moved, "worktree", "list")
    git(moved, "worktree", "prune")
    assert git(run, "rev-parse", "--git-common-dir").strip() == str(moved / ".git")


def test_a_copy_leaves_the_worktrees_of_the_original_alone(project: Path) -> None:
    copy = project.with_name("copy")
    shutil.copytree(project, copy)
    assert git(copy / "runs" / "rl-a", "rev-parse", "--git-common-dir").strip() == str(project / ".git")
    assert reconnect(copy) == [copy / "runs" / "rl-a"]
    for folder in (project, copy):
        assert git(folder / "runs" / "rl-a", "rev-parse", "--git-common-dir").strip() == str(folder / ".git")
        git(folder, "worktree", "remove", "rl-a")


def test_a_program_that_goes_to_another_project_sees_that_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    for folder in (project, other, project / "runs" / "rl-a"):
        monkeypatch.chdir(folder)
        assert main_checkout() == (other if folder == other else project)


def test_records_and_artifacts_are_found_where_the_project_is_now(
    project: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("MATHRL_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    artifacts = project / ".mathrl" / "artifacts"
    artifacts.mkdir(parents=True)
    store = shutil.copy(empty_store, project / ".mathrl" / "mlflow.db")
    client = mlflow.MlflowClient(f"sqlite:///{store}")
    experiment = client.create_experiment("mathrl", artifacts.as_uri())
    elsewhere = client.create_experiment("another program's", "file:///data/others")
    run = client.create_run(experiment).info.run_id
    client.log_text(run, "text", "note.txt")

    moved = project.rename(project.with_name("a folder with % and _"))
    monkeypatch.chdir(moved)
    follow_move()
    client = mlflow.MlflowClient(f"sqlite:///{moved / '.mathrl' / 'mlflow.db'}")
    assert client.get_experiment(experiment).artifact_location == (moved / ".mathrl" / "artifacts").as_uri()
    assert client.get_experiment(elsewhere).artifact_location == "file:///data/others"
    assert [item.path for item in client.list_artifacts(run)] == ["note.txt"]
    assert not project.exists(), "nothing is written to the folder that the project had"

    back = moved.rename(project)
    monkeypatch.chdir(back)
    follow_move()
    assert [item.path for item in mlflow.MlflowClient(f"sqlite:///{store}").list_artifacts(run)] == ["note.txt"]
    assert present_folder(str(moved)) == str(project)
    assert present_folder(str(moved / "runs" / "rl-a")) == str(project / "runs" / "rl-a")
    assert present_folder(str(project / "runs" / "pruned")) == str(project / "runs" / "pruned")
