import errno
import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from mathrl.core.files import written_aside
from mathrl.learners.checkpoint import KEEP, Checkpoint, CheckpointFolder, flushed_digests, write_tensors


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"weights": torch.full((3,), float(step))}, {"cursor": step * 10})


def test_the_last_ones_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert folder.latest() is None
    for step in (5, 10, 15):
        folder.save(checkpoint(step))
    assert len(list(tmp_path.glob("*.safetensors"))) == KEEP
    found = folder.latest()
    assert found is not None and found.step == 15 and found.values == {"cursor": 150}
    assert torch.equal(found.tensors["weights"], torch.full((3,), 15.0)) and found.parts is None
    (tmp_path / "step-00000010.safetensors").unlink()  # by a user who needs the space
    folder.save(checkpoint(20))
    assert {path.name for path in tmp_path.iterdir()} == {
        f"step-{step:08d}.{kind}" for step in (15, 20) for kind in ("json", "safetensors")
    }


@pytest.mark.parametrize("damage", ["flip a bit", "cut short", "remove tensors", "break the manifest", "lose a digest"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(5))
    folder.save(checkpoint(10))
    tensors, manifest = tmp_path / "step-00000010.safetensors", tmp_path / "step-00000010.json"
    data = bytearray(tensors.read_bytes())
    if damage == "flip a bit":
        data[-1] ^= 1
        tensors.write_bytes(data)
    elif damage == "cut short":
        tensors.write_bytes(data[:-4])
    elif damage == "remove tensors":
        tensors.unlink()
    elif damage == "lose a digest":
        manifest.write_text(manifest.read_text().replace("sha256", "sha"))
    else:
        manifest.write_text(manifest.read_text()[:-10])
    with pytest.warns(UserWarning, match="step-00000010") as warned:
        found = folder.latest()
    assert found is not None and found.step == 5
    assert {warning.filename for warning in warned} == {__file__}, "the line that asked for it is named"


def test_tensors_without_a_manifest_do_not_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(5))
    # What a kill between the two renames leaves.
    (tmp_path / "step-00000010.safetensors").write_bytes(b"whole, but not yet named")
    found = folder.latest()
    assert found is not None and found.step == 5
    assert json.loads((tmp_path / "step-00000005.json").read_text())["step"] == 5


def test_what_kills_left_is_removed_by_the_next_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(checkpoint(5))
    folder.parts(7).mkdir()
    (folder.parts(7) / "rank-0.bin").write_bytes(b"half")
    write_tensors(checkpoint(8).tensors, tmp_path / "step-00000008.safetensors")
    if (child := os.fork()) == 0:
        with written_aside(tmp_path / "step-00000009.safetensors") as aside:
            aside.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 5
    folder.save(checkpoint(10))
    assert {path.name for path in tmp_path.iterdir()} == {
        f"step-{step:08d}.{kind}" for step in (5, 10) for kind in ("json", "safetensors")
    }


def test_the_files_of_a_backend_come_and_go_with_their_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (5, 10, 15):
        (folder.parts(step) / "rank-0").mkdir(parents=True)
        (folder.parts(step) / "rank-0" / "moments").write_text(str(step))
        folder.save(checkpoint(step))
    assert {path.name for path in tmp_path.glob("*.parts")} == {f"step-{step:08d}.parts" for step in (10, 15)}
    found = folder.latest()
    assert found is not None and found.parts == folder.parts(15)
    (folder.parts(15) / "rank-0" / "moments").write_text("14")
    with pytest.warns(UserWarning, match="step-00000015"):
        found = folder.latest()
    assert found is not None and found.parts == folder.parts(10)


def test_the_files_of_a_backend_are_on_the_disk_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    files = {"a/x": b"one", "y": b"two"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_ino))
    digests = flushed_digests(tmp_path)
    assert digests == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert sorted(flushed) == sorted((tmp_path / name).stat().st_ino for name in files)


def test_an_error_of_the_disk_has_its_number(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised:
        write_tensors({"weights": torch.zeros(3)}, tmp_path / "missing" / "file")
    assert raised.value.errno == errno.ENOENT and raised.value.strerror == os.strerror(errno.ENOENT)
