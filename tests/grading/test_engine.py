"""The symbolic engine: killed when late, owned, gone with its parent, from any thread and after a fork."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from mathrl.core.guard import is_alive
from mathrl.grading import SymbolicEngine, engine_process, grade

LIMIT = 0.2


@pytest.fixture(scope="module")
def engine() -> Iterator[SymbolicEngine]:
    started = SymbolicEngine(limit=10.0)
    assert started.warm_up()
    yield started
    started.close()


def test_the_engine_shows_what_evaluation_does_not_reach(engine: SymbolicEngine) -> None:
    assert engine.ask("x^2-1", "(x-1)(x+1)").equal
    assert not engine.ask("x^2-1", "(x-1)(x+2)").equal
    verdict = grade("\\boxed{1+\\sum_{k=1}^n (k^2+k)}", "1+\\sum_{j=1}^n j(j+1)", engine=engine)
    assert (verdict.correct, verdict.rule) == (True, "boxed; symbolic")


def hang(truth: str, answer: str) -> bool:
    while True:
        pass


def leave(truth: str, answer: str) -> bool:
    raise SystemExit


COMPARE = {
    "who": lambda truth, answer: os.getpid(),
    "timer": lambda truth, answer: 0 < signal.getitimer(signal.ITIMER_PROF)[0] < 2 * LIMIT,
    "hang": hang,
    "leave": leave,
    "hog": lambda truth, answer: len(bytearray(8 << 30)) > 0,
    "wait": lambda truth, answer: time.sleep(2 * LIMIT) is None,
    "sleep": lambda truth, answer: time.sleep(600) is None,
}


def test_a_late_worker_is_killed_and_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = ["who", "timer", "leave", "hog", "wait", "who", "hang", "who", "sleep", "who"]
    sink = io.BytesIO()

    def requests() -> Iterator[bytes]:
        for mode in modes:  # the clock ends the sleeper alone, however slow the machine
            monkeypatch.setattr(engine_process, "WAIT", 1.0 if mode == "sleep" else 1000.0)
            yield json.dumps(["1", "1", mode]).encode() + b"\n"

    engine_process.keep(requests(), sink, COMPARE, LIMIT)  # type: ignore[arg-type]
    ready, *lines = sink.getvalue().splitlines()
    first, timed, left, hogged, waited, second, hung, third, slept, fourth = map(json.loads, lines)
    assert ready == b"ready"
    assert first["equal"] == second["equal"], "an exit and a lack of memory are replies, no ends"
    assert [(reply["equal"], reply["error"]) for reply in (left, hogged)] == [
        (False, "SystemExit"),
        (False, "MemoryError"),
    ]
    assert timed["equal"], "one that computes is ended by its processor time, a sleeper by the clock"
    assert waited == {"equal": True, "seconds": pytest.approx(0, abs=LIMIT / 2)}, "the time of others is not its own"
    assert hung == slept == {"equal": False, "error": "timeout", "seconds": LIMIT}
    workers = {reply["equal"] for reply in (first, third, fourth)}
    assert len(workers) == 3 and not any(map(is_alive, workers))


def test_it_works_from_threads_and_leaves_the_alarm_alone(engine: SymbolicEngine) -> None:
    verdicts = []
    signal.alarm(3600)

    def run(power: int) -> None:
        answer, truth = f"1+\\sum_{{k=1}}^n (k^{power}+k)", f"1+\\sum_{{j=1}}^n j(j^{power - 1}+1)"
        verdicts.append(grade(f"\\boxed{{{answer}}}", truth, engine=engine))

    threads = [threading.Thread(target=run, args=(power,)) for power in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert signal.alarm(0) > 0
    assert len(verdicts) == 4
    assert all("symbolic" in verdict.rule for verdict in verdicts)


def test_lone_surrogates_pass_and_a_lost_engine_is_replaced(
    engine: SymbolicEngine, keepers: Callable[[], list[psutil.Process]]
) -> None:
    before = keepers()
    assert not engine.ask("x^2\ud83d", "\udc80y").equal
    assert engine.ask("x", "x").equal
    assert keepers() == before
    for keeper in before:
        keeper.kill()
    while any(is_alive(keeper.pid) for keeper in before):
        time.sleep(0.01)
    assert engine.warm_up()
    assert engine.ask("x", "x").equal
    assert keepers() and not set(before) & set(keepers())


def test_a_start_costs_no_pair_but_does_not_hold_up_the_caller() -> None:
    patient, hasty = SymbolicEngine(limit=10.0, patience=120.0), SymbolicEngine(limit=0.01, patience=0.0)
    pair = ("\\boxed{2\\sum_{m=1}^n m}", "\\sum_{j=1}^n 2j")
    assert grade(*pair, engine=hasty).reason == "the symbolic engine is still starting"
    with hasty._lock:  # as `warm_up` of another thread holds it
        assert hasty.ask("x", "y") == (False, "the symbolic engine is busy")
    assert [patient.ask("4", "so \\boxed{4}", "whole") for _ in range(2)] == [(True, "")] * 2
    assert patient.warm_up() and grade(*pair, engine=patient).correct, "what passes by is not remembered"
    for engine in (patient, hasty):
        engine.close()


SCRIPT = """
import os
import psutil
from mathrl.grading import grade, warm_up
def engine():
    (process,) = psutil.Process().children()
    return process.pid
def correct(name):
    return grade(f"\\\\boxed{{\\\\sum_{{{name}=1}}^n {name}^2}}", "\\\\sum_{j=1}^n j^2").correct
warm_up()
assert correct("k")
parent_engine = engine()
print(parent_engine, flush=True)
child = os.fork()
if child == 0:
    warm_up()
    os._exit(0 if correct("m") and engine() != parent_engine else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert correct("p")
os.kill(os.getpid(), 9)
"""


def test_after_a_fork_and_at_the_end_nothing_is_left() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert run.returncode == -9, run.stderr
    pid = int(run.stdout)
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


IMPORTS = """
import json, sys
at_start = set(sys.modules)
import mathrl.grading
mathrl.grading.grade("\\\\boxed{\\\\frac12}", "0.5")
print(json.dumps(sorted(set(sys.modules) - at_start)))
mathrl.grading.grade("\\\\boxed{2\\\\sqrt{x}}", "\\\\sqrt{4x}")
print(json.dumps(sorted(set(sys.modules) - at_start)))
"""


def test_the_grader_imports_core_alone_and_no_library() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300, check=True)
    at_import, with_radicals = (json.loads(line) for line in run.stdout.splitlines())
    own = {name.split(".")[1] for name in with_radicals if name.startswith("mathrl.")}
    assert own == {"core", "grading"}
    libraries = [{n.split(".")[0] for n in names} - sys.stdlib_module_names for names in (at_import, with_radicals)]
    assert libraries == [{"mathrl"}, {"mathrl", "mpmath"}]
