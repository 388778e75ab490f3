"""verl's trainer and its checkpoint merger as processes of verl's own Python, and the checkpoints that are whole."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.environment import Variable
from mathrl.core.errors import EXIT_USER_ERROR, UserError
from mathrl.core.files import write_json
from mathrl.core.metrics import complete_rows

DRIVER = "mathrl.engines.verl_driver"
NEEDED = ("verl", "ray", "transfer_queue", "mathrl")
FLASH = "flash_attn"
FIND = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))"
POLL_SECONDS = 0.5
STOP_SECONDS = 5.0  # less than a flow that ends gives a stage (mathrl.core.guard)
TAIL_LINES = 20
# The last line of a traceback, behind what Ray puts before a worker's lines.
RAISED = re.compile(r"(?:^|\x1b\[0m )((?:\w+\.)*\w*(?:Error|Exception): .+)$")


def verl_python() -> str:
    """The Python that has verl: MATHRL_VERL_PYTHON, by default this one.

    Raises:
        UserError: it does not run, or lacks a package; the message says what to do.
    """
    python = Variable.VERL_PYTHON.get() or sys.executable
    advice = (
        "install verl with TransferQueue, and mathrl, into an environment of their own (docs/reference/engines.md), "
        f"set {Variable.VERL_PYTHON} to its Python, or set rl.engine to mathrl"
    )
    try:
        answer = subprocess.run([python, "-c", FIND, *NEEDED], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"rl.engine is verl, but {python} does not run ({error}): {advice}") from None
    if missing := answer.stdout.split():
        raise UserError(f"rl.engine is verl, but {python} cannot find {' and '.join(missing)}: {advice}")
    return python


def attention_of(python: str) -> str:
    """The attention of verl's trainer: flash_attention_2 where verl's Python has it, else PyTorch's (sdpa).

    verl asks for flash_attention_2 by default, and ends at the model's load without the package, which PyPI has as
    source alone. With sdpa packed rows are told apart by their position ids.
    """
    done = subprocess.run([python, "-c", FIND, FLASH], capture_output=True, text=True, check=False)
    return "sdpa" if done.returncode or done.stdout.strip() else "flash_attention_2"


class VerlTraining:
    """A training of verl: started as its context is entered, and ended with it, Ray on this machine included."""

    def __init__(self, python: str, overrides: Sequence[str], metrics: Path, log: Path) -> None:
        self.python, self.overrides, self.metrics, self.log = python, list(overrides), metrics, log
        self.variables = {"VERL_FILE_LOGGER_PATH": str(metrics), "RAY_USAGE_STATS_ENABLED": "0"}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "VerlTraining":
        self.metrics.unlink(missing_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        file = self.metrics.with_name("overrides.json")
        write_json(file, self.overrides)
        # A session of its own: Ctrl-C in a terminal reaches it through `__exit__` alone.
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [self.python, "-m", DRIVER, str(file)],
                env=os.environ | self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        assert process is not None
        if process.poll() is None:
            print("ending verl; started again, the run goes on from its last checkpoint", file=sys.stderr, flush=True)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def rows(self) -> Iterator[dict[str, Any]]:
        """verl's metrics {"step": …, "data": {…}}, each row as it is written, until the training ends well.

        Raises:
            UserError: verl refuses its configuration, or ends with an error.
        """
        assert self.process is not None
        seen = 0
        while True:
            ended = self.process.poll() is not None  # asked before the file is read: nothing is written after it
            rows = complete_rows(self.metrics)
            yield from rows[seen:]
            seen = len(rows)
            if ended:
                break
            time.sleep(POLL_SECONDS)
        check_ended(self.process.returncode, self.log, "the training of verl")


def merge_checkpoint(python: str, actor: Path, target: Path, log: Path) -> None:
    """verl's own merger: the shards of `actor`, a checkpoint of FSDP, as a Hugging Face folder.

    Raises:
        UserError: it fails.
    """
    command = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    with log.open("wb") as output:
        done = subprocess.run(
            [*command, "--local_dir", str(actor), "--target_dir", str(target)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    check_ended(done.returncode, log, "verl's merger")


def check_ended(status: int, log: Path, what: str) -> None:
    """Raises UserError: a process did not end with status 0; its last lines go to stderr."""
    if status == 0:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if status == EXIT_USER_ERROR:
        error_line = next((line for line in reversed(lines) if line.startswith("error: ")), "")
        if error_line:
            raise UserError(f"{error_line.removeprefix('error: ')}; its output is in {log}")
    print(*lines[-TAIL_LINES:], sep="\n", file=sys.stderr, flush=True)
    cause = f"signal {-status}" if status < 0 else f"exit status {status}"
    raised = [match[1] for line in lines if (match := RAISED.search(line))]
    reason = f": {raised[-1]}" if raised else ""
    raise UserError(f"{what} ended with {cause}{reason}; its output is in {log}")


TRACKER = "latest_checkpointed_iteration.txt"
SHARDS = ("model", "optim", "extra_state")


@dataclass(frozen=True)
class VerlCheckpoint:
    """A whole checkpoint of verl after `step` steps.

    Example: VerlCheckpoint(Path("checkpoints/global_step_20"), 20)
    """

    folder: Path
    step: int

    @property
    def actor(self) -> Path:
        """The policy's shards, as verl's merger takes them."""
        return self.folder / "actor"


def latest_checkpoint(checkpoints: Path, recorded: Collection[int]) -> VerlCheckpoint | None:
    """The newest whole checkpoint of a step in `recorded`; later ones and what is not whole are removed.

    verl writes `global_step_N/actor/` (weights, optimizer and state of each rank), `global_step_N/data.pt` and at last
    `latest_checkpointed_iteration.txt` with N. The metrics of step N follow after that, and are lost to a kill in
    between: such a checkpoint is left out, since its step would be missing in the run's record.
    """
    done = _tracked_step(checkpoints)
    for folder in sorted(checkpoints.glob("global_step_*"), key=_step, reverse=True):
        step = _step(folder)
        problem = "not written to its end" if step > done else _problem(folder)
        if not problem and step in recorded:
            return VerlCheckpoint(folder, step)
        if problem:
            warnings.warn(f"{folder}: {problem}; using the checkpoint before it", stacklevel=2)
        shutil.rmtree(folder)
    return None


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])


def _tracked_step(checkpoints: Path) -> int:
    """The step of the last checkpoint that verl wrote to its end, or 0."""
    file = checkpoints / TRACKER
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return int(text) if text.isdigit() else 0


def _problem(folder: Path) -> str:
    try:
        world = int(json.loads((folder / "actor/fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError) as error:
        return f"damaged ({error})"
    shards = [f"actor/{kind}_world_size_{world}_rank_{rank}.pt" for kind in SHARDS for rank in range(world)]
    missing = [name for name in ("data.pt", *shards) if not (folder / name).exists()]
    return f"{missing[0]} is missing" if missing else ""
