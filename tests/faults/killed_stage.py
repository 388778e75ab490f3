"""Run a stage that kills itself with SIGKILL at the n-th occurrence of a moment of its work.

STAGE=module FAULT=moment:n python killed_stage.py WORD…; without FAULT the stage runs to its end. $OCCURRENCES names a
file for how often each moment occurred. The other ranks are copies. The module is one of `mathrl.stages`.

Three faults kill nothing: from `full` on no file may be larger than 20 kB, from `rows full` on none larger than 100
bytes; after the step `held` it makes the file `held` and stands still until that is removed.

With $WRONG_CLOCK the clock jumps by up to that many seconds.

`killed_stage.py --serve` imports torch once and forks a process per request, since imports take ten seconds: requests
are JSON lines on stdin, answered by the process's id; its status goes to the file `status`.
"""

import json
import os
import random
import re
import resource
import runpy
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

occurrences: Counter[str] = Counter()
killed_at, fault_number = "", 0


def rank() -> str:
    return os.environ.get("RANK", "0")


def due(moment: str) -> bool:
    """Count an occurrence of the moment; whether it is the one that $FAULT names, at rank 0 or $FAULTY_RANK."""
    occurrences[moment] += 1
    here = rank() == os.environ.get("FAULTY_RANK", "0")
    return here and (moment, occurrences[moment]) == (killed_at, fault_number)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reach(moment: str) -> None:
    if due(moment):
        die()


def before(moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        reach(moment)
        return function(*args, **options)

    return wrapped


def after(moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        reach(moment)
        return result

    return wrapped


def limit_files(size: int) -> None:
    """From now on, larger files do not fit on the disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def jumping_clock(seconds: float) -> None:
    """From now on `time.time` is wrong by up to this much, each time by another amount."""
    right = time.time
    time.time = lambda: right() + random.uniform(-seconds, seconds)


def plant_training() -> None:
    from torch.optim import AdamW

    from mathrl.core.metrics import JsonlSink
    from mathrl.learners import checkpoint
    from mathrl.learners.torch_learner import TorchLearner
    from mathrl.rollout.torch_engine import CopyEngine

    # The gradient is complete, and no weight has changed.
    TorchLearner.reduce = after("update", TorchLearner.reduce)  # type: ignore[method-assign]
    # Some weights have changed.
    AdamW.step = after("optimizer", AdamW.step)  # type: ignore[method-assign]
    # A checkpoint without its manifest; a checkpoint, and one too many old ones.
    checkpoint.write_json = after("named", before("unnamed", checkpoint.write_json))
    write_tensors, save, log, sync = (
        checkpoint.write_tensors,
        checkpoint.CheckpointFolder.save,
        JsonlSink.log,
        CopyEngine.sync,
    )

    def half_written(tensors: Any, file: Path) -> None:
        write_tensors(tensors, file)
        if due("tensors"):
            os.truncate(file, file.stat().st_size // 2)
            die()

    def limited_save(self: Any, point: Any) -> None:
        if due("full"):
            limit_files(20_000)
        save(self, point)

    def torn_line(self: Any, step: int, metrics: Any) -> None:
        if due("metrics"):
            with self.path.open("a") as stream:
                stream.write('{"step": ' + str(step))
            die()
        log(self, step, metrics)
        if due("held"):
            Path("held").touch()
            while Path("held").exists():
                time.sleep(0.01)

    def half_synced(self: Any, weights: Any) -> str:
        weights = list(weights)
        if due("sync"):
            sync(self, weights[: len(weights) // 2])
            die()
        return sync(self, weights)

    checkpoint.write_tensors = half_written
    checkpoint.CheckpointFolder.save = limited_save  # type: ignore[method-assign]
    JsonlSink.log = torn_line  # type: ignore[method-assign]
    CopyEngine.sync = half_synced  # type: ignore[method-assign]


def plant_sampling() -> None:
    from mathrl.models.decode import PackedDecoder
    from mathrl.rollout import sample_problems

    step, flush = PackedDecoder.step, os.fsync

    def watched_step(self: Any, *args: Any) -> Any:
        reach("rollout")
        return step(self, *args)

    def half_flushed(descriptor: int) -> None:
        """Half of a chunk's line has been written."""
        if due("chunk"):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - 20)
            die()
        flush(descriptor)

    PackedDecoder.step = watched_step  # type: ignore[method-assign]
    sample_problems.os = SimpleNamespace(fsync=half_flushed)  # type: ignore[attr-defined]


def plant_files() -> None:
    """Renames of what `written_aside` wrote, whose occurrences are odd before and even after; the clean-up."""
    write_text, remove_tree = Path.write_text, shutil.rmtree
    state, records = (Path(os.environ["MATHRL_HOME"]) / name for name in ("state", "records"))

    def place_of(path: Path) -> str:
        absolute = path.absolute()
        if absolute.is_relative_to(state):
            return "checkpoint"
        if absolute.is_relative_to(records):
            return "record"
        if absolute.parent == records.parent:
            return "home"  # what is kept of the code's digests
        return "base" if re.search(r"/models/\.?base\b", str(absolute)) else "export"  # made before the first step

    def renaming(name: str) -> Callable[..., Any]:
        rename = getattr(Path, name)

        def wrapped(self: Path, target: Path) -> Any:
            reach(place_of(self))
            result = rename(self, target)
            reach(place_of(self))
            return result

        return wrapped

    def half_rewritten(self: Path, text: str, *args: Any, **options: Any) -> Any:
        """Half of the metrics that a resumed run keeps has been written."""
        if "metrics.jsonl" in self.name and text:
            if due("rows full"):
                limit_files(100)
            if due("rows"):
                write_text(self, text[: len(text) // 2], *args, **options)
                die()
        return write_text(self, text, *args, **options)

    def removing(path: Any, *args: Any, **options: Any) -> None:
        """Some files of a finished run's state have been removed, in any order."""
        if Path(path).parent == state:
            files = sorted(file for file in Path(path).rglob("*") if file.is_file())
            random.Random(fault_number).shuffle(files)
            for file in files:
                reach("clean-up")
                file.unlink()
            reach("clean-up")
        remove_tree(path, *args, **options)
        if Path(path).parent == state:
            reach("clean-up")

    for name in ("rename", "replace"):
        setattr(Path, name, renaming(name))
    Path.write_text = half_rewritten  # type: ignore[method-assign]
    shutil.rmtree = removing  # type: ignore[assignment]


def run(words: list[str]) -> None:
    from mathrl.core import mirroring

    global killed_at, fault_number
    killed_at, _, number = os.environ.get("FAULT", ":0").partition(":")
    fault_number = int(number)
    plant_training()
    plant_sampling()
    plant_files()
    mirroring.UPLOAD_SECONDS = 900.0
    if os.environ.get("WRONG_CLOCK"):
        jumping_clock(float(os.environ["WRONG_CLOCK"]))
    sys.argv = [__file__, *words]
    try:
        runpy.run_module(f"mathrl.stages.{os.environ['STAGE']}", run_name="__main__")
    finally:
        if "OCCURRENCES" in os.environ and rank() == "0":
            Path(os.environ["OCCURRENCES"]).write_text(json.dumps(occurrences))


def begin(request: dict[str, Any], output: int) -> None:
    """In the forked process: the folder, environment and streams of the request."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for source, stream in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, stream)


def drain(output: int, log: Path) -> None:
    """Append what the process has written to its log; a pipe, since a limit on files would hold for a log."""
    while select.select([output], [], [], 0)[0] and (written := os.read(output, 1 << 16)):
        with log.open("ab") as stream:
            stream.write(written)


def serve() -> dict[str, Any] | None:
    """Fork a process per request until stdin ends; its request in a forked process, None in the server."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
    import torch

    import mathrl.evaluation.evaluate_model
    import mathrl.health.watch
    import mathrl.models.load
    import mathrl.reports.html_figures
    import mathrl.rollout.open_engine
    import mathrl.trainers.reward_model
    import mathrl.trainers.rl
    import mathrl.trainers.sft  # noqa: F401

    assert torch.zeros(2, 2).matmul(torch.zeros(2, 2)).sum() == 0
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"
    children: dict[int, tuple[int, Path]] = {}  # the output and the log of each process
    while True:
        if select.select([0], [], [], 0.01)[0]:
            line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
            if not line:
                break
            request: dict[str, Any] = json.loads(line)
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                begin(request, writer)
                return request
            os.close(writer)
            children[pid] = reader, Path(request["log"])
            children[pid][1].touch()
            print(pid, flush=True)
        for pid, (output, log) in list(children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            drain(output, log)
            if ended:
                del children[pid]
                os.close(output)
                log.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
                log.with_suffix(".new").rename(log.with_suffix(".status"))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        forked = serve()
        if forked is not None:
            run(forked["words"])
    else:
        run(sys.argv[1:])
