"""One `dvc repro` as a child process, followed stage by stage."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_STOPPED, EXIT_TERMINATED
from mathrl.core.paths import home, state_root, tracking_uri

STARTED = re.compile(r"Running stage '(?:[^':]*:)?([\w-]+)'")
SKIPPED = re.compile(r"Stage '(?:[^':]*:)?([\w-]+)' (?:didn't change|is cached)")
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")  # the last line of a traceback
# A stage that wrote a checkpoint since it was told to stop, or was told so (SIGTERM) before it could listen.
STOPPED = re.compile(rf"failed to run: .*, exited with ({EXIT_STOPPED}|{EXIT_TERMINATED}|-15)$")
LAST_LINES = 25


class Preempted(UserError):
    """A stage ended since something outside the flow told it to; started again, it goes on."""


def environment(workspace: Path, flow_run: str = "") -> dict[str, str]:
    """What a stage's process is given: the venv first on PATH, absolute places, quiet tools."""
    bin_folder = str(Path(sys.executable).parent)
    progress = home() / f"progress-{os.getpid()}.json"
    progress.unlink(missing_ok=True)  # of another process that had this id
    given = dict(os.environ)
    given |= {
        "PATH": bin_folder + os.pathsep + given.get("PATH", ""),
        "PYTHONUNBUFFERED": "1",
        Variable.HOME: str(home()),
        Variable.STATE: str(state_root()),
        "MLFLOW_TRACKING_URI": tracking_uri(),
        Variable.FLOW_RUN: flow_run,
        Variable.PROGRESS: str(progress),
        "DVC_NO_ANALYTICS": "1",
    }
    given.pop("PYTHONPATH", None)  # the workspace's own code comes first, as `python -m` has it
    return given


class Repro:
    """`dvc repro TARGET` in a workspace; its output is read on a thread and passed on.

    `show` is given every piece of output as it comes (progress bars redraw themselves with carriage returns).
    """

    def __init__(
        self, workspace: Path, target: str, env: dict[str, str], show: Callable[[str], None], *, single: bool = False
    ) -> None:
        # In the workspace's folder the guard module is the workspace's; any version of it will do.
        self.command = [sys.executable, "-m", "mathrl.core.guard", sys.executable, "-m", "dvc", "repro", target]
        self.command += ["--single-item"] if single else []
        self.workspace, self.env, self.show = workspace, env, show
        self.start()

    def start(self) -> None:
        """Start DVC; or, after a stage was stopped, once more: it skips what is done."""
        _mend_locks(self.workspace)
        self.process = subprocess.Popen(
            self.command,
            cwd=self.workspace,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.events, self.lines, self.stopped = Queue[tuple[str, str]](), [""], False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def follow(self, stage: str, on_wait: Callable[[], None] = lambda: None) -> str:
        """Wait until the stage is over: "ran" or "skipped".

        `on_wait` is called about once a second meanwhile.

        Raises:
            Preempted: it was stopped from outside and can go on.
            UserError: it failed; the message has its last lines.
        """
        ran = "skipped"
        while True:
            try:
                what, name = self.events.get(timeout=1.0)
            except Empty:
                on_wait()
                continue
            if what == "ended":
                self.events.put((what, name))  # for the stages that follow
                self.finish(stage)
                return ran
            if name == stage:
                if what == "skipped":
                    return "skipped"
                ran = "ran"
            elif ran == "ran" and what in ("started", "skipped"):
                self.events.queue.appendleft((what, name))  # the next stage's: this one is over
                return ran

    def upcoming(self) -> str | None:
        """The stage that runs or was skipped next, for `follow`; None when DVC has ended."""
        what, name = self.events.get()
        if what == "ended":
            self.events.put((what, name))
            return None
        self.events.queue.appendleft((what, name))
        return name

    def finish(self, stage: str) -> None:
        """Wait until DVC has written its lock files and ended by itself.

        Raises:
            Preempted: a stage was stopped from outside and can go on.
            UserError: it failed; the message has its last lines.
        """
        code = self.process.wait()
        if not code:
            return
        self.reader.join(timeout=5)
        stage = self._failed_stage() or stage
        # 130: the guard was told to end all of it.
        self.stopped = code != 130 and any(STOPPED.search(line) for line in self.lines)
        if self.stopped:
            raise Preempted(f"stage {stage} was told to stop from outside; it keeps what it needs to go on")
        raise UserError(f"stage {stage} failed: {self._last_words()}")

    def stop(self) -> None:
        """End the process group and wait until it is gone."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()
        self.reader.join(timeout=5)

    def _read(self) -> None:
        assert self.process.stdout is not None
        descriptor, tail = self.process.stdout.fileno(), ""
        while piece := os.read(descriptor, 65536):
            text = piece.decode(errors="replace")
            self.show(text)
            *whole, tail = (tail + text).split("\n")
            for line in whole:
                self._line(line.rsplit("\r", 1)[-1])
        self.process.wait()
        self.events.put(("ended", ""))

    def _line(self, line: str) -> None:
        self.lines = [*self.lines[-LAST_LINES:], line]
        for what, pattern in (("started", STARTED), ("skipped", SKIPPED)):
            if found := pattern.search(line):
                self.events.put((what, found[1]))

    def _failed_stage(self) -> str | None:
        found = re.search(r"failed to reproduce '([^']+)'", "\n".join(self.lines))
        return found[1] if found else None

    def _last_words(self) -> str:
        """The stage's sentence, or the exception that ended it, or what it said last."""
        errors = [line.removeprefix("error: ") for line in self.lines if line.startswith("error: ")]
        raised = [line for line in self.lines if RAISED.match(line)]
        rest = [line for line in self.lines if line.strip()]
        return [*rest, *raised, *errors][-1] if rest else "it said nothing"


def _mend_locks(workspace: Path) -> None:
    """Remove DVC's list of locks where a kill left it half written: DVC would refuse to run ever after."""
    file = workspace / ".dvc" / "tmp" / "rwlock"
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        file.unlink(missing_ok=True)


@contextmanager
def running(repro: Repro) -> Iterator[Repro]:
    """End the child whatever happens to the parent: success, a stage's failure, cancellation.

    What fails beside the stages is none of these, such as Prefect's server that no longer answers (its client
    says so by exceptions of many kinds): the child goes on to its end, so that what it makes is kept.
    """
    try:
        yield repro
    except UserError:
        raise
    except Exception as error:
        print(f"{error!r}: the stages end by themselves", file=sys.stderr, flush=True)
        repro.process.wait()
        raise
    finally:
        repro.stop()
