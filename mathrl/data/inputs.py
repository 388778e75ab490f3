"""Files that lie outside the checkout, as links in data/inputs/<stage>, which DVC watches.

DVC follows the links and hashes what they lead to, so a plain `dvc repro` notices a file with other bytes.
The stage that reads the files makes its links anew when it begins, and `mathrl run` does before DVC looks,
which notices also what a link cannot show: a further file in a folder, or one that comes before the hub.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mathrl.data.row_files import labels
from mathrl.data.sources import ResolvedSource

INPUTS = Path("data/inputs")


def of_sources(sources: Iterable[ResolvedSource]) -> dict[str, Path]:
    """The local files of sources, by the name of their link.

    Example:
        {"gsm8k-rl/gsm8k_train.jsonl.gz": Path("/data/gsm8k_train.jsonl.gz")}
    """
    links: dict[str, Path] = {}
    for source in sources:
        folder = re.sub(r"[^\w.-]+", "_", f"{source.name}-{source.split}").strip("_.")
        links |= {f"{folder}/{label}": file for file, label in source.labels.items()}
    return links


def of_pages(files: Mapping[str, Iterable[Path]], evaluation: Iterable[ResolvedSource]) -> dict[str, Path]:
    links = {f"{name}/{label}": file for name, paths in files.items() for file, label in labels(paths).items()}
    return links | of_sources(evaluation)


def link(stage: str, files: Mapping[str, Path]) -> None:
    """Make data/inputs/<stage> hold a link to each of these files, and no other link.

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
