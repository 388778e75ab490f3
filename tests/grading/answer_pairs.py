"""The pairs of answers in *.tsv: the accepted answer, a tab, the answer in the box. "# " starts a comment."""

from pathlib import Path


def answer_pairs(name: str) -> list[tuple[str, str]]:
    """The pairs (accepted answer, answer in the box) of `name`.tsv."""
    lines = Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split("\t")) for line in lines if line and not line.startswith("# ")]
    return [(truth, answer) for truth, answer in pairs]
