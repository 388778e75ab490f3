"""Digests of values, files and folders: short SHA-256, stable across machines; and seeds that follow from one."""

import gzip
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from mathrl.core.files import walk_files

LENGTH = 16
MODEL_SUFFIXES = frozenset({".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".py"})
BLOCK, BLOCKS = 1 << 14, 1024  # bytes of a block, and blocks that are read of a large file


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
    """Digest of a model folder's weights, configuration and tokenizer, in a fraction of a second for any size.

    Of a file of more than BLOCKS blocks that many are read, at equal distances: training changes all of a matrix.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in MODEL_SUFFIXES and file.is_file())
    return digest([[file.name, file.stat().st_size, _sha256_blocks(file)] for file in files])


def _sha256_blocks(path: Path) -> str:
    size, blocks = path.stat().st_size, hashlib.sha256()
    if size <= BLOCK * BLOCKS:
        return sha256_file(path)
    with path.open("rb") as stream:
        for block in range(BLOCKS):
            stream.seek(block * (size - BLOCK) // (BLOCKS - 1))
            blocks.update(stream.read(BLOCK))
    return blocks.hexdigest()


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
