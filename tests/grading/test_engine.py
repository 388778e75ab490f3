"""The symbolic engine: killed when late, owned, gone with its parent, from any thread and after a fork."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from mathrl.core.parent import is_alive
from mathrl.grading import SymbolicEngine, grade
from mathrl.grading.engine_process import _Worker, keep

SYMBOLIC = ("\\boxed{\\sum_{k=1}^n k^2}", "\\sum_{j=1}^n j^2")


@pytest.fixture(scope="module")
def engine() -> Iterator[SymbolicEngine]:
    started = SymbolicEngine()
    assert started.warm_up()
    yield started
    started.close()


def test_the_engine_shows_what_evaluation_does_not_reach(engine: SymbolicEngine) -> None:
    assert engine.ask("x^2-1", "(x-1)(x+1)").equal
    assert not engine.ask("x^2-1", "(x-1)(x+2)").equal
    verdict = grade(*SYMBOLIC, engine=engine)
    assert verdict.correct
    assert verdict.rule == "boxed; symbolic"


def hang(truth: str, answer: str) -> bool:
    while True:
        pass


def hog(truth: str, answer: str) -> bool:
    return len(bytearray(8 << 30)) > 0


def leave(truth: str, answer: str) -> bool:
    raise SystemExit


def sleep(truth: str, answer: str) -> bool:
    time.sleep(600)
    return False


def test_a_late_worker_is_killed_and_replaced_at_once() -> None:
    compare = {"hang": hang, "sleep": sleep, "fine": lambda truth, answer: truth == answer}
    worker = _Worker(compare, 0.3)
    assert worker.ask(b'["1","1","hang"]\n') is None
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None and ended.si_status == signal.SIGPROF, "by its processor time"
    worker.kill()
    assert not is_alive(worker.pid)
    requests = [["1", "1", "hang"], ["1", "1", "fine"], ["1", "2", "fine"], ["1", "1", "sleep"], ["2", "2", "fine"]]
    sink = io.BytesIO()
    keep(io.BytesIO(b"".join(json.dumps(r).encode() + b"\n" for r in requests)), sink, compare, 0.3)
    lines = sink.getvalue().splitlines()
    assert lines[0] == b"ready"
    late = {"equal": False, "error": "timeout", "seconds": 0.3}
    replies = [json.loads(line) for line in lines[1:]]
    assert [replies[0], replies[3]] == [late, late], "the sleeper by the clock"
    assert [replies[n]["equal"] for n in (1, 2, 4)] == [True, False, True]


def test_the_time_of_others_is_not_a_pair_s_own() -> None:
    worker = _Worker({"wait": lambda truth, answer: time.sleep(0.5) is None}, 0.1)
    assert worker.ask(b'["1","1","wait"]\n') == {"equal": True, "seconds": pytest.approx(0, abs=0.1)}
    worker.kill()


def test_a_worker_survives_memory_and_exit() -> None:
    worker = _Worker({"hog": hog, "leave": leave}, 5.0)
    for name, error in (("hog", "MemoryError"), ("leave", "SystemExit")):
        reply = worker.ask(json.dumps(["1", "1", name]).encode() + b"\n")
        assert reply is not None and (reply["equal"], reply["error"]) == (False, error)
    worker.kill()


def test_it_works_from_threads_and_leaves_the_alarm_alone(engine: SymbolicEngine) -> None:
    verdicts = []
    signal.alarm(100)

    def run(power: int) -> None:
        answer, truth = f"\\sum_{{k=1}}^n k^{power}", f"\\sum_{{j=1}}^n j^{power}"
        verdicts.append(grade(f"\\boxed{{{answer}}}", truth, engine=engine))

    threads = [threading.Thread(target=run, args=(power,)) for power in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert signal.alarm(0) > 90
    assert len(verdicts) == 4
    assert all("symbolic" in verdict.rule for verdict in verdicts)


def test_a_lost_engine_is_replaced(engine: SymbolicEngine) -> None:
    process = engine._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert engine.warm_up()
    assert engine.ask("x", "x").equal


def test_a_start_that_takes_longer_than_the_limit_costs_no_pair() -> None:
    patient = SymbolicEngine(limit=0.5, patience=120.0)  # the start takes a second or more
    assert [patient.ask("4", "so \\boxed{4}", "whole") for _ in range(2)] == [(True, "")] * 2
    patient.close()


def test_a_busy_engine_does_not_hold_up_the_caller() -> None:
    held = SymbolicEngine(limit=0.05)
    held._lock.acquire()
    outcome = held.ask("x", "y")
    assert not outcome.equal
    assert outcome.reason == "the symbolic engine is busy"


SCRIPT = """
import os, sys, time
from mathrl.grading import grade, warm_up
from mathrl.grading.engine import default_engine
pair = ("\\\\boxed{\\\\sum_{k=1}^n k^2}", "\\\\sum_{j=1}^n j^2")
warm_up()
assert grade(*pair).correct
parent_engine = default_engine()._process.pid
child = os.fork()
if child == 0:
    from mathrl.grading.grade import _cache
    _cache.clear()
    warm_up()
    fine = grade(*pair).correct and default_engine()._process.pid != parent_engine
    default_engine().close()
    os._exit(0 if fine else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert grade("\\\\boxed{\\\\sum_{k=1}^n k^3}", "\\\\sum_{j=1}^n j^3").rule.endswith("symbolic")
print(parent_engine, flush=True)
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["leave", "die"])
def test_after_a_fork_and_at_the_end_nothing_is_left(end: str) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, end], capture_output=True, text=True, timeout=300)
    assert run.returncode == (0 if end == "leave" else -9), run.stderr
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
