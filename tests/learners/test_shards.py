"""Shards of a checkpoint, written by some ranks and read by others."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mathrl.learners.shards import Shards, write_shard, write_shards


@pytest.mark.parametrize(("writers", "readers"), [(1, 4), (2, 3), (4, 1), (3, 7)])
def test_parts_are_read_as_they_were_written_by_any_number_of_ranks(tmp_path: Path, writers: int, readers: int) -> None:
    whole = {"value/w": torch.arange(17.0), "best/@w": torch.arange(3).bfloat16()}

    def parts(rank: int, ranks: int) -> list[tuple[str, int, torch.Tensor]]:
        cuts = {name: [len(values) * n // ranks for n in range(ranks + 1)] for name, values in whole.items()}
        return [(name, cuts[name][rank], whole[name][cuts[name][rank] : cuts[name][rank + 1]]) for name in whole]

    for rank in range(writers):
        write_shard(tmp_path, rank, parts(rank, writers))
    shards = Shards(tmp_path)
    assert shards.names("best/") == ["@w"]
    for rank in range(readers):
        for name, begin, values in parts(rank, readers):
            read = torch.zeros_like(values)
            shards.fill(name, begin, read)
            assert torch.equal(read, values)


def test_missing_parts_are_counted(tmp_path: Path) -> None:
    write_shard(tmp_path, 1, [("value/w", 6, torch.ones(6))])
    with pytest.raises(ValueError, match="value/w: 2 of the elements 4 to 10 are missing"):
        Shards(tmp_path).fill("value/w", 4, torch.zeros(6))


def test_old_shards_stay_until_every_rank_has_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may still resume from a checkpoint while another writes the next one into the same folder."""
    write_shard(tmp_path, 0, [("old", 0, torch.ones(2))])
    found: list[list[str]] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "barrier", lambda: found.append(Shards(tmp_path).names("")))
    write_shards(tmp_path, [("new", 0, torch.ones(2))])
    assert found == [["old"], [], ["new"]]
