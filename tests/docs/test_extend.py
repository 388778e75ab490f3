"""The code of docs/extend and of the tutorials works: files, diffs and checks in a copy of the repository."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "extend" / f"{name}.md" for name in ("source", "reward", "algorithm", "engine")]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.M | re.S)


def test_the_code_of_the_pages_works(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "mathrl", "params"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    checks: list[str] = []
    for page in PAGES:
        found = BLOCK.findall(page.read_text(encoding="utf-8"))
        assert {"python", "diff"} & {language for language, _, _ in found}, page
        for language, title, code in found:
            if title:
                assert not (tmp_path / title).exists(), f"{page.name}: {title} is there already"
                (tmp_path / title).write_text(code, encoding="utf-8")
            elif language == "diff":
                done = subprocess.run(
                    ["git", "apply", "-C1", "-"], cwd=tmp_path, input=code, text=True, capture_output=True, check=False
                )
                assert done.returncode == 0, f"{page.name}: {done.stderr}"
            elif language == "python":
                checks.append(f"# {page.name}\n{code}")
    assert len(checks) == 6
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        for language, _, code in BLOCK.findall(page.read_text(encoding="utf-8")):
            checks += [f"# {page.name}\n{code}"] * (language == "python")
    assert len(checks) == 7
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(checks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    tested = "import doctest, sys, mathrl.rewards.right_steps as m; sys.exit(doctest.testmod(m).failed)"
    assert subprocess.run([sys.executable, "-c", tested], cwd=tmp_path, check=False).returncode == 0
