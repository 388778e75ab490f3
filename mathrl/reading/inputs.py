"""Files outside the checkout, as links in data/inputs/<stage>, which DVC watches.

DVC follows the links and hashes their targets, so a plain `dvc repro` notices a file whose bytes changed.
The stage that reads the files renews its links when it starts, and `mathrl run` renews them before DVC looks,
which also shows what a link cannot: a new file in a folder, or a local file that replaces the hub.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mathrl.reading.row_files import labels
from mathrl.reading.sources import ResolvedSource

INPUTS = Path("data/inputs")


def of_sources(sources: Iterable[ResolvedSource]) -> dict[str, Path]:
    """The local files of the sources, by the names of their links.

    Example:
        {"gsm8k-rl/gsm8k_train.jsonl.gz": Path("/data/gsm8k_train.jsonl.gz")}
    """
    links: dict[str, Path] = {}
    for source in sources:
        folder = re.sub(r"[^\w.-]+", "_", f"{source.name}-{source.split}").strip("_.")
        links |= {f"{folder}/{label}": file for file, label in source.labels.items()}
    return links


def of_pages(files: Mapping[str, Iterable[Path]], evaluation: Iterable[ResolvedSource]) -> dict[str, Path]:
    """The page files by parameter, and the local files of the evaluation sets, by the names of their links."""
    links = {f"{name}/{label}": file for name, paths in files.items() for file, label in labels(paths).items()}
    return links | of_sources(evaluation)


def link(stage: str, files: Mapping[str, Path]) -> None:
    """Make data/inputs/<stage> hold a link to each of these files and no others.

    Several processes may do so at once, for the same files.
    """
    folder = INPUTS / stage
    folder.mkdir(parents=True, exist_ok=True)
    targets = {folder / name: file.absolute() for name, file in files.items()}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() and (path not in targets or path.readlink() != targets[path]):
            path.unlink(missing_ok=True)
        elif path.is_dir() and not any(path.iterdir()):
            with suppress(OSError):
                path.rmdir()
    for path, file in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.symlink_to(file)
