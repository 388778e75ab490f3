"""The digest of weights: what changes it, and what does not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mathrl.models import weights as weight_digest
from mathrl.models.weights import WeightDigest, bit_sum, folder_digest, write_buckets


def digest(weights: dict[str, Tensor]) -> str:
    total = WeightDigest()
    for name, weight in weights.items():
        total.add(name, weight)
    return total.hexdigest()


def test_the_sum_of_a_tensors_bits_by_hand() -> None:
    # In bfloat16 the bits of 1, 2 and -1 are 0x3F80, 0x4000 and 0xBF80, the last a negative int16.
    weight = torch.tensor([1.0, 2.0, -1.0], dtype=torch.bfloat16)
    assert int(bit_sum(weight)) == 0x3F80 + 3 * 0x4000 + 5 * (0xBF80 - 0x10000)
    assert int(bit_sum(torch.tensor([2**62, 2**62]))) == 0  # 4 * 2^62, modulo 2^64


def test_blocks_give_the_sum_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(7, 11)
    whole = int(bit_sum(weight))
    monkeypatch.setattr(weight_digest, "BLOCK", 10)
    assert int(bit_sum(weight)) == whole


def test_every_difference_shows_and_the_order_does_not() -> None:
    a, b = torch.randn(4, 6), torch.randn(3)
    expected = digest({"a": a, "b": b})
    assert digest({"b": b, "a": a}) == expected == digest({"a": a.t().contiguous().t(), "b": b.clone()})
    flipped = a.clone()
    flipped.view(torch.int32)[2, 3] ^= 1  # the last bit of one element
    swapped = a.clone()
    swapped[0, 0], swapped[0, 1] = a[0, 1], a[0, 0]
    wrong = [
        {"a": flipped, "b": b}, {"a": swapped, "b": b}, {"a": a.reshape(6, 4), "b": b}, {"c": a, "b": b},
        {"a": a.double(), "b": b}, {"a": a}, {"a": a, "b": -b},
    ]  # fmt: skip
    assert len({expected, *map(digest, wrong)}) == 1 + len(wrong)


def test_what_was_written_has_the_digest_of_what_is_read(tmp_path: Path) -> None:
    weights = {"x": torch.randn(300, 300), "y": torch.randn(50), "n": torch.arange(5)}
    small = write_buckets(weights.items(), tmp_path / "small", torch.bfloat16, 1)
    assert len(list((tmp_path / "small").iterdir())) == 1
    assert (
        small
        == folder_digest(tmp_path / "small")
        == digest({**weights, "x": weights["x"].bfloat16(), "y": weights["y"].bfloat16()})
    )
    file = tmp_path / "small" / "00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert folder_digest(tmp_path / "small") != small
