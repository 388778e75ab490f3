"""Tests in a warm process: which lines each of them runs, and which of them notices a change of a function.

A plugin of pytest in place of its loop. Once the tests are collected, every run of them is a fork of this process, in
which torch and the tests are imported: a change costs the tests that run its lines, from the quickest to the first
that fails, and no start of a program.
"""

import ast
import gc
import hashlib
import inspect
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp
from types import CodeType, FunctionType

import coverage
import pytest

GOLDEN = "test_the_trace_is_the_files"


@dataclass(frozen=True)
class Change:
    """A changed text of a file; `lines` of the original, both ends included, are what it is about."""

    name: str
    file: str
    lines: tuple[int, int]
    text: str


@dataclass
class Outcome:
    change: Change
    fate: str  # noticed, unnoticed, endless, unreached (by no test), unmade (not possible in a living process)
    by: str = ""  # the last test that ran
    tests: int = 0
    seconds: float = 0.0


@dataclass
class Reach:
    """By file and line the tests that run it, and by test how long it takes."""

    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def breadth(self) -> Counter[str]:
        """How many lines each test runs."""
        return Counter(test for rows in self.lines.values() for tests in rows.values() for test in tests)

    def tests(self, file: str, lines: tuple[int, int]) -> list[str]:
        """Those that run one of the lines: first the quick ones that run few others, which are about these.

        Golden traces come before others that are as quick and broad: they compare every figure.
        """
        found = {test for line in range(lines[0], lines[1] + 1) for test in self.lines.get(file, {}).get(line, ())}
        costs = {test: self.seconds[test] * self.breadth[test] / (8 if GOLDEN in test else 1) for test in found}
        return sorted(found, key=lambda test: (costs[test], test))

    def halves(self, tests: Sequence[str]) -> tuple[list[str], list[str]]:
        """The first of the tests, which take together a hundredth of the time of all, and the others."""
        limit = sum(self.seconds.values()) / 100
        ends = list(accumulate(self.seconds[test] for test in tests))
        count = max(1, bisect_right(ends, limit))
        return list(tests[:count]), list(tests[count:])


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and of its classes, in their order, without those within functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            else:
                yield from functions_of(constant)


def definitions_of(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """The same from the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        elif not isinstance(child, ast.AsyncFunctionDef | ast.Lambda):
            yield from definitions_of(child)


class Functions:
    """The living functions of some files."""

    def __init__(self, files: Sequence[str]) -> None:
        wanted = {str(Path(file).resolve()) for file in files}
        self.living: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in wanted:
                self.living[self._key(each.__code__)].append(each)

    @staticmethod
    def _key(code: CodeType) -> tuple[str, str, int]:
        return code.co_filename, code.co_qualname, code.co_firstlineno

    def put(self, change: Change) -> None:
        """Put the changed code and defaults into the living functions.

        Raises:
            LookupError: no living function has the code.
            ValueError: the change takes the last `super()` out of a method, whose code then does not fit.
        """
        file = str(Path(change.file).resolve())
        pairs = []
        for text in (Path(file).read_text(encoding="utf-8"), change.text):
            codes = functions_of(compile(text, file, "exec"))
            pairs.append(list(zip(codes, definitions_of(ast.parse(text)), strict=True)))
        for (before, old), (after, new) in zip(*pairs, strict=True):
            if before != after or ast.dump(old.args) != ast.dump(new.args):
                break  # those that follow may have moved by a line
        else:
            return
        if not self.living[self._key(before)]:
            raise LookupError(f"{change.name}: no living function has its code")
        self._put_within(before, after)
        for function in self.living[self._key(before)]:
            function.__code__ = after
            # An empty function of the same parameters, to take their defaults from.
            first = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
            empty = ast.Module([first, ast.FunctionDef("empty", new.args, [ast.Pass()], [])], [])
            names = dict(function.__globals__)
            exec(compile(ast.fix_missing_locations(empty), file, "exec"), names)
            function.__defaults__, function.__kwdefaults__ = names["empty"].__defaults__, names["empty"].__kwdefaults__

    def _put_within(self, before: CodeType, after: CodeType) -> None:
        """The same for the functions that it has made, such as those that a decorator has put around others."""
        codes = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
        for old, new in zip(*codes, strict=False):
            if old.co_name != new.co_name:
                return
            for function in self.living.get(self._key(old), ()):
                if old.co_freevars == new.co_freevars:
                    function.__code__ = new
            self._put_within(old, new)


class Warm:
    """The plugin. `work` is called with it when the tests are collected."""

    def __init__(self, files: Sequence[str], work: Callable[["Warm"], None]) -> None:
        self.files, self.work = files, work
        self.failed = False
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed
        if report.failed:
            print(report.longreprtext)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self.items = {item.nodeid: item for item in session.items}
        for file in self.files:
            import_module(module_of(file))
        self.functions = Functions(self.files)
        gc.freeze()
        self.work(self)
        return True

    def run(self, tests: Sequence[str], folder: Path, before: Callable[[str], None]) -> bool:
        """Whether the tests pass, up to the first that does not, with their temporary folders in `folder`.

        `before` is called before each.
        """
        folder = folder.resolve()
        folder.mkdir(parents=True)
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config._tmp_path_factory._basetemp = folder
            before(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return False
        return True

    def reach(self, tests: Sequence[str], folder: Path) -> Reach:
        """Run the tests in a fork and see which lines they reach; what they print is in the file `folder`.log.

        Raises:
            SystemExit: a test fails without a change.
        """

        def measured(pipe: int) -> None:
            tracer = coverage.Coverage(data_file=None, config_file=False, include=self.files, concurrency=["thread"])
            begun: dict[str, float] = {}

            def next_one(test: str) -> None:
                begun[test] = time.monotonic()
                tracer.switch_context(test)

            tracer.start()
            passed = self.run(tests, folder, next_one)
            tracer.stop()
            ends = [*begun.values(), time.monotonic()][1:]
            seconds = {test: end - start for (test, start), end in zip(begun.items(), ends, strict=True)}
            lines = {file: tracer.get_data().contexts_by_lineno(str(Path(file).resolve())) for file in self.files}
            answer = {"passed": passed, "last": list(begun)[-1], "lines": lines, "seconds": seconds}
            with os.fdopen(pipe, "w") as stream:
                json.dump(answer, stream)

        process, pipe = forked(measured, folder.with_suffix(".log"))
        with os.fdopen(pipe) as stream:
            answer = json.loads(stream.read() or '{"passed": false, "last": "the first test"}')
        os.waitpid(process, 0)
        if not answer["passed"]:
            sys.exit(f"{answer['last']} fails without a change: {folder.with_suffix('.log')}")
        lines = {file: {int(line): tests for line, tests in rows.items()} for file, rows in answer["lines"].items()}
        return Reach(lines, answer["seconds"])

    def reach_kept(self, file: Path, not_traced: tuple[str, ...]) -> Reach:
        """The reach of all tests, of which only those run whose files have changed since `file` was written.

        Those of the files `not_traced` are left out.

        Where one of the sources has changed, all run.
        """
        sources = digest_of(self.files)
        digests = {item.nodeid: digest_of(imported(str(item.path))) for item in self.items.values()}
        kept = json.loads(file.read_text()) if file.exists() else {"sources": ""}
        if kept["sources"] != sources:
            kept = {"sources": sources, "digests": {}, "lines": {}, "seconds": {}}
        old = {test for test in kept["seconds"] if kept["digests"][test] == digests.get(test)}
        new = [test for test in self.items if test not in old and not test.startswith(not_traced)]
        measured = self.reach(new, Path("measured")) if new else Reach()
        lines: dict[str, dict[int, list[str]]] = {}
        for name in self.files:
            before = {int(line): tests for line, tests in kept["lines"].get(name, {}).items()}
            after = measured.lines.get(name, {})
            lines[name] = {
                line: [test for test in before.get(line, ()) if test in old] + after.get(line, [])
                for line in sorted(before.keys() | after.keys())
            }
        seconds = {test: kept["seconds"][test] for test in old} | measured.seconds
        found = {"sources": sources, "digests": digests, "lines": lines, "seconds": seconds}
        file.write_text(json.dumps(found))
        return Reach(lines, seconds)

    def outcomes(
        self, changes: Sequence[tuple[Change, Sequence[str]]], reach: Reach, log: Path, at_once: int, end: float
    ) -> Iterator[Outcome]:
        """What some tests say to each change; none begins after the moment `end` of time.monotonic()."""
        running: list[Trial] = []
        for change, tests in changes:
            while len(running) >= at_once:
                yield from ended(running)
            if time.monotonic() > end:
                break
            if tests:
                running.append(Trial(self, change, tests, reach, log))
            else:
                yield Outcome(change, "unreached")
        while running:
            yield from ended(running)


class Trial:
    """A fork that has the change and runs tests, one after the other, until one fails; they print to `log`."""

    def __init__(self, warm: Warm, change: Change, tests: Sequence[str], reach: Reach, log: Path) -> None:
        self.change, self.tests, self.reach = change, tests, reach
        self.folder = folder = Path(mkdtemp(prefix="mutant-"))  # a short path, in which sockets can be
        self.begun, self.told = time.monotonic(), b""
        self.deadline = self.begun + 60

        def work(pipe: int) -> None:
            warm.functions.put(change)
            (folder / "changed.py").write_text(change.text, encoding="utf-8")
            os.environ["MUTANTS_CHANGED"] = f"{module_of(change.file)}={folder / 'changed.py'}"

            def before(test: str) -> None:
                os.write(pipe, b".")
                used = resource.getrusage(resource.RUSAGE_SELF)
                limit = int(used.ru_utime + used.ru_stime + 10 + 5 * reach.seconds.get(test, 120))
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

            os.write(pipe, b"=" if warm.run(tests, folder / "tests", before) else b"!")

        self.process, self.pipe = forked(work, log)

    def outcome(self) -> Outcome | None:
        """What came of it; None while it goes on.

        It has written a point before each test, and at last = where all have passed and ! where one has failed.
        """
        endless = False
        if select.select([self.pipe], [], [], 0.05)[0] and (told := os.read(self.pipe, 1 << 16)):
            self.told += told
            test = self.tests[max(0, self.told.count(b".") - 1)]
            self.deadline = time.monotonic() + 60 + 20 * self.reach.seconds.get(test, 120)
        elif time.monotonic() > self.deadline:
            endless = True
            os.killpg(self.process, signal.SIGKILL)
        process, status = os.waitpid(self.process, 0 if endless else os.WNOHANG)
        if not process:
            return None
        self.told += os.read(self.pipe, 1 << 16) if select.select([self.pipe], [], [], 0)[0] else b""
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)  # what its tests have started and left
        shutil.rmtree(self.folder, ignore_errors=True)
        ran = self.told.count(b".")
        if endless or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
            fate = "endless"
        elif not ran:
            fate = "unmade"
        else:
            fate = "unnoticed" if b"=" in self.told else "noticed"
        return Outcome(self.change, fate, self.tests[ran - 1] if ran else "", ran, time.monotonic() - self.begun)


def ended(running: list[Trial]) -> Iterator[Outcome]:
    """Those of the trials that have ended meanwhile, which are taken from the list."""
    for trial in list(running):
        if outcome := trial.outcome():
            running.remove(trial)
            yield outcome


def module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts)


def digest_of(files: Sequence[str]) -> str:
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def imported(file: str) -> list[str]:
    """The file of tests, and those of tests/ that it imports."""
    modules = re.findall(r"^ *from (tests[.\w]*) import", Path(file).read_text(encoding="utf-8"), re.MULTILINE)
    files = [Path(*module.split(".")).with_suffix(".py") for module in modules]
    return [file, *sorted(str(each) for each in files if each.exists())]


def forked(work: Callable[[int], None], output: Path) -> tuple[int, int]:
    """A fork that does the work, and the pipe's end of which the work is given the other; it prints to a file.

    Its exit status is 0, or 1 after an exception.
    """
    read, write = os.pipe()
    if process := os.fork():
        os.close(write)
        return process, read
    status = 1
    try:
        os.setpgid(0, 0)
        os.close(read)
        for stream, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
            source = os.open(os.devnull if stream == 0 else output, flags)
            os.dup2(source, stream)
        os.dup2(1, 2)
        work(write)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
