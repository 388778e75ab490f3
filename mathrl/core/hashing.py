"""Digests of values, files and folders: short SHA-256, stable across machines; and seeds that follow from one."""

import gzip
import hashlib
import json
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mathrl.core.files import walk_files, write_json
from mathrl.core.paths import home

LENGTH = 16
MODEL_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".py"})
LARGE = 1_000_000_000  # bytes that take a while to read


def digest(value: Any) -> str:
    """Digest of a JSON-able value; equal values give equal digests whatever their key order.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", errors="backslashreplace")).hexdigest()[:LENGTH]


@lru_cache(maxsize=4096)
def hash_text(text: str) -> int:
    """A stable 64-bit hash (Python's own is salted per process)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def digest_path(path: Path) -> str:
    """Digest of a file's bytes, or of a folder's relative names and bytes, links followed."""
    path = Path(path)
    if path.is_file():
        return sha256_file(path)[:LENGTH]
    names = sorted(p for p in walk_files(path) if p.is_file() and "__pycache__" not in p.parts)
    return digest([[p.relative_to(path).as_posix(), sha256_file(p)[:LENGTH]] for p in names])


def digest_model(folder: Path) -> str:
    """Digest of a model folder's weights, configuration and tokenizer.

    A file is read once: model-digests.json in home() keeps its digest until its size or time changes.
    """
    kept = home() / "model-digests.json"
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        known = json.loads(kept.read_text(encoding="utf-8"))
    files = sorted(file for file in folder.iterdir() if file.suffix in MODEL_SUFFIXES and file.is_file())
    states = {file: f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files}
    new = [file for file, state in states.items() if state not in known]
    if (size := sum(file.stat().st_size for file in new)) > LARGE:
        print(f"{folder}: reading {size / 1e9:.1f} GB, once, to notice later changes", file=sys.stderr, flush=True)
    known |= {states[file]: sha256_file(file) for file in new}
    if new:
        write_json(kept, known)
    return digest([[file.name, known[state]] for file, state in states.items()])


def sha256_file(path: Path) -> str:
    """The full SHA-256 of a file's bytes, as `sha256sum` prints it."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_jsonl(path: Path) -> dict[str, str | int]:
    """A manifest entry, {"sha256": …, "rows": …}, of a .jsonl or .jsonl.gz file; blank lines do not count."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return {"sha256": sha256_file(path), "rows": sum(1 for line in stream if line.strip())}


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for one purpose, stable across machines and Python versions.

    >>> derive_seed(0, "rl", 3) == derive_seed(0, "rl", 3)
    True
    >>> derive_seed(0, "rl", 3) == derive_seed(0, "rl", 4)
    False
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", errors="backslashreplace")).digest()[:8], "big") >> 1
