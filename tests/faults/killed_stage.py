"""Runs a stage that kills itself, as SIGKILL from outside would, at the n-th time of a moment of its work.

FAULT=moment:n python killed_stage.py STAGE; without FAULT the stage as it is. The other ranks are copies.
At the moment `full` it is not killed: from then on no file may be larger than 20 kB, and at `rows full` none
than 100 bytes; at `slow` rank 0 samples a token for a minute, and the file `asleep` says so.
"""

import os
import resource
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOMENT, _, TIME = os.environ.get("FAULT", ":0").partition(":")
left = int(TIME)


def die() -> None:
    if os.environ.get("RANK", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def due() -> bool:
    global left
    left -= 1
    return left == 0


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        if due():
            die()
        return function(*given, **named)

    return wrapped


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        out = function(*given, **named)
        if due():
            die()
        return out

    return wrapped


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        # Rank 0 alone: when it comes here, the rows of the steps before are written.
        if os.environ.get("RANK", "0") == "0" and due():
            Path("asleep").touch()
            time.sleep(60)
        return function(*given, **named)

    return wrapped


def half_written(write: Callable[..., Any]) -> Callable[..., Any]:
    """Half of the file is there when it comes."""

    def wrapped(tensors: Any, file: Path) -> None:
        write(tensors, file)
        if due():
            os.truncate(file, file.stat().st_size // 2)
            die()

    return wrapped


def half_rewritten(write: Callable[..., Any]) -> Callable[..., Any]:
    """Half of what a resumed run keeps of its metrics is there when it comes."""

    def wrapped(self: Path, text: str, *given: Any, **named: Any) -> Any:
        if "metrics.jsonl" in self.name and text and due():
            write(self, text[: len(text) // 2], *given, **named)
            die()
        return write(self, text, *given, **named)

    return wrapped


def half_removed(folder: Path) -> None:
    """Of the state of a run that is through, the newest checkpoint's name is gone."""
    max(folder.glob("checkpoints/*.json")).unlink()
    die()


def limit_files(size: int) -> None:
    """Larger ones find no room from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def limiting(write: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Path, text: str, *given: Any, **named: Any) -> Any:
        if "metrics.jsonl" in self.name and text and due():
            limit_files(100)
        return write(self, text, *given, **named)

    return wrapped


def torn_line(self: Any, step: int, metrics: Any) -> None:
    with self.path.open("a") as stream:
        stream.write('{"step": ' + str(step))
    die()


def plant() -> None:
    from torch.optim import AdamW

    from mathrl.core.metrics import JsonlSink
    from mathrl.learners import checkpoint
    from mathrl.learners.torch_learner import TorchLearner
    from mathrl.models import export
    from mathrl.rollout.decode import PackedDecoder
    from mathrl.rollout.torch_engine import CopyEngine
    from mathrl.stages import stage_run as entry

    if MOMENT == "rollout":  # between two tokens
        PackedDecoder.step = before(PackedDecoder.step)  # type: ignore[method-assign]
    elif MOMENT == "slow":
        PackedDecoder.step = slow(PackedDecoder.step)  # type: ignore[method-assign]
    elif MOMENT == "update":  # the gradient is there, nothing has moved
        TorchLearner.reduce = after(TorchLearner.reduce)  # type: ignore[method-assign]
    elif MOMENT == "optimizer":  # some weights have moved
        AdamW.step = after(AdamW.step)  # type: ignore[method-assign]
    elif MOMENT == "tensors":  # half a checkpoint
        checkpoint._write_tensors = half_written(checkpoint._write_tensors)
    elif MOMENT == "unnamed":  # a checkpoint without its manifest
        checkpoint.write_json = before(checkpoint.write_json)
    elif MOMENT == "named":  # a checkpoint, and one too many old ones
        checkpoint.write_json = after(checkpoint.write_json)
    elif MOMENT == "metrics":
        log = JsonlSink.log

        def log_until_due(self: Any, step: int, metrics: Any) -> None:
            (torn_line if due() else log)(self, step, metrics)

        JsonlSink.log = log_until_due  # type: ignore[method-assign]
    elif MOMENT == "rows":  # a resumed run's metrics, less the rows after its checkpoint
        Path.write_text = half_rewritten(Path.write_text)  # type: ignore[method-assign]
    elif MOMENT == "state":
        entry.shutil = SimpleNamespace(rmtree=half_removed)  # type: ignore[attr-defined]
    elif MOMENT == "rows full":
        Path.write_text = limiting(Path.write_text)  # type: ignore[method-assign]
    elif MOMENT == "sync":  # some of the sampler's weights are new
        sync = CopyEngine.sync

        def half_synced(self: Any, weights: Any) -> str:
            some = list(weights)
            if due():
                sync(self, some[: len(some) // 2])
                die()
            return sync(self, some)

        CopyEngine.sync = half_synced  # type: ignore[method-assign]
    elif MOMENT == "full":
        save = checkpoint.CheckpointFolder.save

        def save_until_due(self: Any, point: Any) -> None:
            if due():
                limit_files(20_000)
            save(self, point)

        checkpoint.CheckpointFolder.save = save_until_due  # type: ignore[method-assign]
    elif MOMENT == "export":  # the trained model's folder is half there
        export.write_text = before(export.write_text)


if __name__ == "__main__":
    if MOMENT:
        plant()
    runpy.run_module(f"mathrl.stages.{sys.argv[1]}", run_name="__main__")
