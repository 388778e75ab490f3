"""The code of docs/how_to/extend and of the tutorials works: files, diffs and checks in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTEND = ROOT / "docs" / "how_to" / "extend"
PAGES = [EXTEND / f"{name}.md" for name in ("parameter", "source", "reward", "sampler", "loss", "algorithm", "engine")]
TUTORIALS = sorted((ROOT / "docs" / "start").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.M | re.S)


def copy_repository(to: Path, *paths: str) -> None:
    """The files under `paths` that git tracks, as they are now, in a repository of their own."""
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name, follow_symlinks=False)
    subprocess.run(["git", "init", "-q"], cwd=to, check=True)


def follow(page: Path, folder: Path) -> str:
    """Write the files and apply the diffs of a page in `folder`; its checks as a program."""
    program = f"# {page.name}\n"
    for language, title, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if title:
            assert not (folder / title).exists(), f"{page.name}: {title} exists already"
            (folder / title).parent.mkdir(exist_ok=True)
            (folder / title).write_text(code, encoding="utf-8")
        elif language == "diff":
            patched = subprocess.run(
                ["git", "apply", "-C1", "-"], cwd=folder, input=code, text=True, capture_output=True, check=False
            )
            assert patched.returncode == 0, f"{page.name}: {patched.stderr}"
        elif language == "python":
            program += code
    return program


def run_checks(program: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # DVC starts `python`
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_code_of_the_pages_works(tmp_path: Path) -> None:
    copy_repository(tmp_path, "mathrl", "params")
    programs = {page: follow(page, tmp_path) for page in PAGES}
    assert all("assert" in program for program in programs.values())
    for page in TUTORIALS:
        programs[page] = "".join(code for language, _, code in BLOCK.findall(page.read_text()) if language == "python")
    run_checks("\n".join(programs.values()), tmp_path)
    run_checks("import doctest, sys, mathrl.rewards.right_steps as m; sys.exit(doctest.testmod(m).failed)", tmp_path)


def test_a_stage_from_nothing_to_dvc_and_a_flow(tmp_path: Path) -> None:
    copy_repository(tmp_path, "mathrl", "flows", "tasks", "params", "pipelines", "dvc.yaml", ".dvc", ".dvcignore")
    program = follow(EXTEND / "stage.md", tmp_path)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "A stage"], cwd=tmp_path, check=True)
    run_checks(program, tmp_path)
