"""A project that was moved or copied: its worktrees under runs/ know it by the path that it had."""

from pathlib import Path

from mathrl.core.files import write_text


def reconnect(root: Path) -> list[Path]:
    """Have the worktrees under runs/ belong to the project at `root`; returns those that did not.

    git keeps an absolute path on either side, in files of one line: the worktree's `.git` names its entry in the
    project, .git/worktrees/ID, and the entry's `gitdir` names the worktree. `git worktree repair` would change the
    entries of the project that was copied.
    """
    moved = []
    for link in sorted((root / "runs").glob("*/.git")):
        written = link.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        entry = root / ".git" / "worktrees" / Path(written).name
        if Path(written) != entry and entry.is_dir():
            write_text(entry / "gitdir", f"{link}\n")
            write_text(link, f"gitdir: {entry}\n")
            moved.append(link.parent)
    return moved
