"""One `dvc repro` as a child process, followed stage by stage.

What `dvc repro` prints, read in one place: it reports its progress in English sentences alone.

The patterns fit the version of DVC that constraints.txt pins; tests/platform runs it.
"""

import codecs
import fcntl
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Literal

from mathrl.compose.load import write_resolved
from mathrl.core.code_values import RESOLVE, STAGE, write_code
from mathrl.core.environment import Variable
from mathrl.core.errors import EXIT_STOPPED, EXIT_TERMINATED, UserError
from mathrl.core.guard import is_alive
from mathrl.core.paths import home, state_root, tracking_uri
from mathrl.params.load import FOLDER

Event = Literal["started", "skipped"]
EVENTS: tuple[tuple[Event, re.Pattern[str]], ...] = (
    ("started", re.compile(r"Running stage '(?:[^':]*:)?([\w-]+)'")),
    ("skipped", re.compile(r"Stage '(?:[^':]*:)?([\w-]+)' (?:didn't change|is cached)")),
)
FAILED = re.compile(r"failed to reproduce '([^']+)'")
# A stage that wrote a checkpoint when it was signalled, or that SIGTERM ended before it handled signals.
STOPPED = re.compile(rf"failed to run: .*, exited with ({EXIT_STOPPED}|{EXIT_TERMINATED}|-15)$")
# DVC's database was locked by another `dvc repro` before the stage ran: diskcache's Timeout has no text.
BUSY = re.compile(r"failed to reproduce '[^']+': *$")
# Another `dvc repro` read this one's entry of the run cache while it was written, and removed it as corrupted (DVC's
# StageCache._load_cache). Both ran the same stage, so the next attempt takes what the other one has kept.
REMOVED = re.compile(r"failed to reproduce '[^']+': \[Errno 2\] No such file or directory: '[^']*/runs/[^']*\.tmp'$")
# Advice on git and remotes, which does not concern a run.
ADVICE = (
    "Generating lock",
    "Updating lock",
    "To track the changes",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config core.autostage",
    "Use `dvc push`",
)
# An empty split is usual (SFT that is off); a failed stage has written its own error.
# Of those that hold DVC's locks, in the order of its message.
HOLDER = re.compile(r"^ +\(PID (\d+)\): (.*)$")
NOISE = re.compile(r"WARNING: '[^']*' is empty\.$|ERROR: failed to reproduce ")
LAST_OF_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


def event(line: str) -> tuple[Event, str] | None:
    """What the line reports of a stage.

    >>> event("Running stage 'pipelines/pages/dvc.yaml:pages':"), event("> python -m mathrl.stages.pages")
    (('started', 'pages'), None)
    """
    return next(((kind, match[1]) for kind, pattern in EVENTS if (match := pattern.search(line))), None)


def failed_stage(lines: Sequence[str]) -> str | None:
    match = FAILED.search("\n".join(lines))
    return match[1] if match else None


def was_stopped(lines: Sequence[str]) -> bool:
    """Whether a stage ended because something outside the flow told it to, or DVC collided with another.

    >>> was_stopped(["ERROR: failed to reproduce 'side/dvc.yaml:sft-s1': "])
    True
    >>> was_stopped(["ERROR: failed to reproduce 'sft': failed to run: python -m a, exited with 2"])
    False
    """
    return any(pattern.search(line) for line in lines for pattern in (STOPPED, BUSY, REMOVED))


def lock_holders(lines: Sequence[str]) -> str:
    """The processes for which DVC refused to run; empty: it did not.

    >>> lock_holders(["ERROR: '/p/dvc.lock' is busy, it is being blocked by:", "  (PID 6450): /env/bin/dvc repro", ""])
    'process 6450 (/env/bin/dvc repro)'
    >>> lock_holders(["  (PID 6450): a line of the stage's own"])
    ''
    """
    if not any("it is being blocked by:" in line for line in lines):
        return ""
    return ", ".join(dict.fromkeys(f"process {m[1]} ({m[2].strip()})" for line in lines if (m := HOLDER.match(line))))


def error_message(lines: Sequence[str]) -> str:
    """The stage's error message, or the exception that ended it, or its last line."""
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    exceptions = [line for line in lines if LAST_OF_TRACEBACK.match(line)]
    printed = [line for line in lines if line.strip()]
    return [*printed, *exceptions, *errors][-1] if printed else "it printed nothing"


GUARD_SIGNALLED = 130  # exit status of mathrl.core.guard when it was told to end everything
LAST_LINES = 25
DYING_SECONDS = 10.0
BEFORE = (STAGE, RESOLVE)  # stages that write small files for the others; no person starts them


class Preempted(UserError):
    """A stage ended because something outside the flow told it to; started again, it resumes."""


def environment(flow_run: str = "") -> dict[str, str]:
    """The environment of a stage's process: the venv first on PATH, absolute paths, quiet tools."""
    bin_folder = str(Path(sys.executable).parent)
    progress = home() / f"progress-{os.uname().nodename}-{os.getpid()}.json"  # machines may share the folder
    progress.unlink(missing_ok=True)  # left by an earlier process of this id
    variables = dict(os.environ)
    variables |= {
        "PATH": bin_folder + os.pathsep + variables.get("PATH", ""),
        "PYTHONUNBUFFERED": "1",
        Variable.HOME: str(home()),
        Variable.STATE: str(state_root()),
        "MLFLOW_TRACKING_URI": tracking_uri(),
        Variable.FLOW_RUN: flow_run,
        Variable.PROGRESS: str(progress),
        "DVC_NO_ANALYTICS": "1",
    }
    variables.pop(Variable.SWEEP_STORAGE, None)  # a password that no stage needs
    variables.pop("PYTHONPATH", None)  # the workspace's own code comes first, as `python -m` has it
    return variables


def is_up_to_date(workspace: Path, stage: str, env: Mapping[str, str]) -> bool:
    """Whether DVC would run neither the stage nor one before it; False also where it cannot say, as beside another."""
    command = [sys.executable, "-m", "dvc", "status", "--json", "--with-deps", stage]
    return _changed_stages(command, workspace, env) == set()


def stages_up_to_date(workspace: Path, stages: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The first of the stages, in their order, that DVC would skip; none where it cannot say."""
    command = [sys.executable, "-m", "dvc", "status", "--json", "--with-deps", stages[-1]]
    changed = _changed_stages(command, workspace, env)
    return [] if changed is None else list(itertools.takewhile(lambda stage: stage not in changed, stages))


def _changed_stages(command: Sequence[str], workspace: Path, env: Mapping[str, str]) -> set[str] | None:
    """The stages that `dvc status` says have changed, without the two whose files are written before; None where DVC
    cannot say."""
    try:
        _resolve(workspace)
    except UserError:
        return None
    done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=False)
    try:
        return set(json.loads(done.stdout)) - {*BEFORE}
    except ValueError:
        return None


def _resolve(workspace: Path) -> None:
    """Write the parameters and the code's values that the stages depend on, before DVC looks; of a graph without
    parameters none."""
    if (workspace / FOLDER).is_dir():
        write_code(workspace)
        write_resolved(workspace)


class Repro:
    """`dvc repro TARGET` in a workspace, whose output a thread reads.

    `show` is called with each piece of output as it comes (progress bars redraw themselves with carriage returns).
    """

    def __init__(
        self,
        workspace: Path,
        target: str,
        env: dict[str, str],
        show: Callable[[str], None],
        *,
        single: bool = False,
        force: bool = False,
        wait_for_lock: bool = False,
    ) -> None:
        # In the workspace's folder the guard module is the workspace's; any version of it will do.
        self.command = [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-m", "dvc"]
        self.command += ["--wait-for-lock"] if wait_for_lock else []
        self.command += ["repro", target, *["--single-item"] * single, *["--force"] * force]
        self.workspace, self.env, self.show = workspace, env, show
        if not force:  # a fresh clone of another commit has a schema of its own
            with suppress(UserError):  # the stage itself says what is wrong
                _resolve(workspace)
        file = target.partition(":")[0]  # or a stage of the pipeline
        if not wait_for_lock:  # then others write to it
            _wait_for_dying(workspace, show)
            remove_if_half_written(workspace, file if file.endswith(".yaml") else "dvc.yaml", show)
        self.start()

    def start(self) -> None:
        """Start DVC, or start it again after a stage was stopped: it skips the stages that are done."""
        _repair_locks(self.workspace)
        self.process = subprocess.Popen(
            self.command,
            cwd=self.workspace,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.events = Queue[tuple[Event, str] | None]()  # None: DVC has ended
        self.pending = deque[tuple[Event, str] | None]()  # taken from the queue, and left for the next stage
        self.lines, self.stopped = [""], False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def follow(self, stage: str, on_wait: Callable[[], None] = lambda: None) -> str:
        """Wait until the stage is over: "ran" or "skipped".

        `on_wait` is called about once a second meanwhile.

        Raises:
            Preempted: it was stopped from outside and can resume.
            UserError: it failed; the message has its error.
        """
        outcome = "skipped"
        while True:
            try:
                current = self._next(timeout=1.0)
            except Empty:
                on_wait()
                continue
            if current is None:
                self.pending.append(None)
                self.finish(stage)
                return outcome
            kind, name = current
            if name == stage:
                if kind == "skipped":
                    return "skipped"
                outcome = "ran"
            elif outcome == "ran":  # the next stage's event: this one is over
                self.pending.append(current)
                return outcome

    def next_stage(self) -> str | None:
        """The stage that runs or was skipped next, for `follow`; None if DVC has ended."""
        current = self._next()
        self.pending.append(current)
        return current[1] if current else None

    def _next(self, timeout: float | None = None) -> tuple[Event, str] | None:
        return self.pending.popleft() if self.pending else self.events.get(timeout=timeout)

    def finish(self, stage: str) -> None:
        """Wait until DVC has written its lock files and ended by itself.

        Raises:
            Preempted: a stage was stopped from outside and can resume.
            UserError: a stage failed; the message has its error.
        """
        code = self.process.wait()
        if not code:
            return
        self.reader.join(timeout=60)
        self.show("\n")  # ends the line of a progress bar, which the error would continue
        stage = failed_stage(self.lines) or stage
        self.stopped = code != GUARD_SIGNALLED and was_stopped(self.lines)
        if self.stopped:
            raise Preempted(f"stage {stage} was stopped from outside; it kept its checkpoint and can resume")
        if holders := lock_holders(self.lines):
            raise UserError(
                f"{self.workspace} is in use by {holders}: wait for its end, or stop it; "
                f"if it is none of DVC's, remove {self.workspace / '.dvc/tmp/rwlock'}"
            )
        raise UserError(f"stage {stage} failed: {error_message(self.lines)}")

    def stop(self) -> None:
        """End the process group and wait until it is gone."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()
        self.reader.join(timeout=5)

    def _read(self) -> None:
        assert self.process.stdout is not None
        descriptor, tail = self.process.stdout.fileno(), ""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode  # a piece may end within a character
        while piece := os.read(descriptor, 65536):
            text = decode(piece)
            self.show(text)
            *lines, tail = (tail + text).split("\n")
            for line in lines:
                self._line(line.rsplit("\r", 1)[-1])
        self.process.wait()
        self.events.put(None)

    def _line(self, line: str) -> None:
        self.lines = [*self.lines[-LAST_LINES:], line]
        if (reported := event(line)) and reported[1] not in BEFORE:
            self.events.put(reported)


def _wait_for_dying(workspace: Path, show: Callable[[str], None]) -> None:
    """Wait a few seconds for processes of a run that was killed: they hold DVC's locks until they have ended.

    What still runs then, or belongs to a run that lives, is another run, and DVC says so.
    """
    deadline, told = time.monotonic() + DYING_SECONDS, False
    while (pids := _holders(workspace)) and all(map(_left_behind, pids)) and time.monotonic() < deadline:
        if not told:
            show(f"waiting for an earlier run in this folder to end (process {pids[0]})\n")
        told = True
        time.sleep(0.2)


def _holders(workspace: Path) -> list[int]:
    """The living processes in DVC's list of locks."""
    try:
        locks = json.loads((workspace / ".dvc" / "tmp" / "rwlock").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    writers = list(locks.get("write", {}).values())
    readers = [reader for listed in locks.get("read", {}).values() for reader in listed]
    return sorted({holder["pid"] for holder in [*writers, *readers] if is_alive(holder["pid"])})


def _left_behind(pid: int) -> bool:
    """Whether the run that started this process has ended: its progress file has the run's host and process id.

    Its parent says less: the guard outlives the run for as long as it ends the process.
    """
    import psutil  # 20 ms, which few runs need

    try:
        progress = psutil.Process(pid).environ().get(Variable.PROGRESS, "")
    except psutil.Error:  # it has ended, or is another user's
        return False
    starter = Path(progress).name.removeprefix(f"progress-{os.uname().nodename}-").partition(".json")[0]
    return starter.isdigit() and not is_alive(int(starter))


def _repair_locks(workspace: Path) -> None:
    """Remove DVC's list of locks if a kill left it half written: DVC would refuse to run from then on."""
    file = workspace / ".dvc" / "tmp" / "rwlock"
    if _is_whole(file):
        return
    with ExitStack() as stack:
        with suppress(FileNotFoundError):  # DVC has not run here
            guard = stack.enter_context(file.with_name("rwlock.lock").open("r+b"))
            fcntl.flock(guard, fcntl.LOCK_EX)  # a living DVC holds it while it writes the list
        if not _is_whole(file):
            file.unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    """Whether the file is JSON, or is not there."""
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        return isinstance(error, FileNotFoundError)
    return True


def remove_if_half_written(workspace: Path, file: str, show: Callable[[str], None]) -> None:
    """Remove the lock file of a dvc.yaml if a kill cut DVC off while it wrote it: DVC would refuse to read it.

    What DVC writes ends with a new line. What has run is in DVC's run cache, and not run again.
    """
    lock = (workspace / file).with_suffix(".lock")
    for _ in range(2):  # or somebody is writing it now
        if not lock.exists() or lock.read_bytes().endswith(b"\n"):
            return
        time.sleep(1.0)
    lock.unlink(missing_ok=True)
    show(f"{lock.relative_to(workspace)} was half written when a run was killed; it is removed, DVC writes it anew\n")


@contextmanager
def end_with_block(repro: Repro) -> Iterator[Repro]:
    """End the child when the block ends: on success, a stage's failure, cancellation.

    If anything else fails (e.g. the Prefect server is gone), let the stages finish first, so their outputs are kept.
    """
    try:
        yield repro
    except UserError:
        raise
    except Exception as error:
        print(f"{error!r}: the stages run to their end", file=sys.stderr, flush=True)
        repro.process.wait()
        raise
    finally:
        repro.stop()
