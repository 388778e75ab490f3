"""Sessions of the sandbox: what a call prints, what is kept and what is not, limits, ends, and a sandbox that dies."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from mathrl.core.errors import UserError
from mathrl.params.rollout import Bubblewrap, NoTool
from mathrl.tools import bubblewrap
from mathrl.tools.open_tool import open_tool
from mathrl.tools.pool import Pool
from mathrl.tools.tool import LOST, NO_OUTPUT, ToolOutput
from tests.tools.sandbox import LIMITS, programs, wait_for_processes


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes that have imported nothing, and start at once."""
    monkeypatch.setitem(bubblewrap.IMPORTED, "usual", ([], ""))


def run(pool: Pool, code: str, seconds: float | None = None) -> ToolOutput:
    session = pool.session()
    try:
        return session.run(code, seconds)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("1 + 1", "ok", "2"),
        ("print('a')\n'b'", "ok", "a\n'b'"),
        ("x = 1", "ok", NO_OUTPUT),
        ("None", "ok", NO_OUTPUT),
        ("", "ok", NO_OUTPUT),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)", "ok", "out\nerr"),
        ("import sympy\nsympy.solve('x**2 - 2')", "ok", "[-sqrt(2), sqrt(2)]"),
        ("import numpy\nnumpy.arange(3) @ numpy.arange(3)", "ok", "np.int64(5)"),
        ("from scipy.integrate import quad\nround(quad(lambda x: x**2, 0, 3)[0], 9)", "ok", "9.0"),
        ("import fractions\nfractions.Fraction(1, 3) + 1", "ok", "Fraction(4, 3)"),
        ("'∑ é 中'", "ok", "'∑ é 中'"),
        ("import random\nrandom.random()", "ok", "0.8444218515250481"),
    ],
)
def test_a_call_is_answered_as_a_notebook_does(pool: Pool, code: str, status: str, text: str) -> None:
    output = run(pool, code)
    assert (output.status, output.text) == (status, text)
    assert 0 < output.seconds < LIMITS.wall_seconds


def test_a_program_that_names_scipy_finds_it_imported_and_others_can_import_it(pool: Pool) -> None:
    imported = "import sys\n{'scipy.integrate', 'numpy', 'sympy'} <= set(sys.modules)"
    assert run(pool, f"# scipy\n{imported}").text == "True"
    session = pool.session()
    assert session.run(imported.replace("scipy", "sci' + 'py")).text == "False"  # forked without it, half as dear
    assert session.run("import scipy.special\nscipy.special.comb(4, 2)").text == "np.float64(6.0)"
    session.close()


def test_an_exception_is_shown_with_the_lines_of_the_code_alone(pool: Pool) -> None:
    lines = run(pool, "def f():\n    return 1 / 0\n\nf()").text.splitlines()
    assert [line for line in lines if "^" not in line] == [
        "Traceback (most recent call last):",
        '  File "<call 1>", line 4, in <module>',
        "    f()",
        '  File "<call 1>", line 2, in f',
        "    return 1 / 0",
        "ZeroDivisionError: division by zero",
    ]
    lines = run(pool, "x = (").text.splitlines()
    assert (lines[0], lines[-1]) == ('  File "<call 1>", line 1', "SyntaxError: '(' was never closed")


def test_a_session_keeps_its_variables_and_files_and_another_has_none_of_them(pool: Pool) -> None:
    one, other = pool.session(), pool.session()
    one.run("x = 5\nopen('notes', 'w').write('kept')")
    other.run("x = 7")
    assert one.run("x, open('/tmp/notes').read()").text == "(5, 'kept')"
    assert one.run("x += 1\n1 / 0").status == "error"
    assert one.run("x").text == "6"  # what an exception came after is kept, as in a notebook
    assert other.run("import os\nx, os.listdir('/tmp')").text == "(7, [])"
    one.close()
    other.close()
    assert one.run("x") == ToolOutput("The session is closed.", "unavailable", pytest.approx(0, abs=60))


MAPPED = """
import ctypes, errno, fcntl, glob, time
file = open(sorted(glob.glob("/libraries/*"))[0], "rb")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(4096), 1, {}, file.fileno(), ctypes.c_long(0))
value = ctypes.c_uint.from_address(address).value
"""


def test_sessions_cannot_signal_each_other_through_the_files_they_share(pool: Pool) -> None:
    """Bits by flock, and a wait that the other session's wake ends, both on a library of the sandbox."""
    with ThreadPoolExecutor(2) as threads:
        for mapping in (1, 2):  # MAP_SHARED, MAP_PRIVATE: a page that is only read is one for all
            one, two = pool.session(), pool.session()
            assert one.run(MAPPED.format(mapping)).status == two.run(MAPPED.format(mapping)).status == "ok"
            held = one.run("fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)")
            tried = two.run("fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)")
            assert held.status == tried.status == "error" and "Operation not permitted" in held.text
            waits = "start = time.time()\nlimit = (ctypes.c_long * 2)({}, {})\n"
            waits += "result = libc.syscall(202, ctypes.c_void_p(address), {}, value, limit, None, 0)\n"
            waits += "time.time() - start < 50, errno.errorcode[ctypes.get_errno()]"
            waiting = threads.submit(two.run, waits.format(60, 0, 0))
            time.sleep(0.5)
            woken = one.run("libc.syscall(202, ctypes.c_void_p(address), 1, 10, None, None, 0)")
            assert woken.text == "0", "the wake that finds the other session's wait returns 1"
            assert waiting.result().text == "(True, 'EAGAIN')", "no wait, so none that a wake could end"
            # A wait of its own process alone ends at its limit.
            assert two.run(waits.format(0, 200_000_000, 128)).text == "(True, 'ETIMEDOUT')"
            one.close(), two.close()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "from multiprocessing.pool import ThreadPool\n"
            "with ThreadPool(4) as workers:\n    total = sum(workers.map(lambda n: n * n, range(2000)))\ntotal",
            "2664667000",
        ),
        (
            "import threading\nlock, count = threading.Lock(), 0\n"
            "def add():\n    global count\n    for _ in range(5000):\n        with lock:\n            count += 1\n"
            "threads = [threading.Thread(target=add) for _ in range(4)]\n"
            "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
            "event = threading.Event()\nthreading.Timer(0.1, event.set).start()\n"
            "count, event.wait(10), threading.Event().wait(0.05)",
            "(20000, True, False)",
        ),
        (
            # A lock between processes sleeps in the kernel only by a shared futex: here it asks again and again.
            "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"
            "lock, value = context.Lock(), context.Value('i', 0, lock=False)\n"
            "def add():\n    for _ in range(200):\n        with lock:\n            value.value += 1\n"
            "workers = [context.Process(target=add) for _ in range(3)]\n"
            "[worker.start() for worker in workers], [worker.join() for worker in workers]\n"
            "value.value, [worker.exitcode for worker in workers]",
            "(600, [0, 0, 0])",
        ),
        (
            "import sqlite3, sympy, numpy as np\nx = sympy.Symbol('x')\n"
            "sqlite3.connect(':memory:').execute('select 2').fetchall(), sympy.integrate(x * sympy.exp(x), x), "
            "float(np.linalg.det(np.eye(3) * 2)), len(np.sort(np.random.default_rng(0).random(100000)))",
            "([(2,)], (x - 1)*exp(x), 8.0, 100000)",
        ),
    ],
    ids=["thread pool", "threads", "processes", "libraries"],
)
def test_threads_processes_and_libraries_work_as_elsewhere(pool: Pool, code: str, text: str) -> None:
    output = run(pool, code)
    assert (output.status, output.text.replace("7.999999999999998", "8.0")) == ("ok", text)


def test_what_a_call_leaves_running_is_stopped_and_its_processes_are_gone(pool: Pool) -> None:
    session = pool.session()
    session.run(
        "import os, threading, time\ncount = 0\ndef later():\n    global count\n    while True:\n        count += 1\n"
        "threading.Thread(target=later, daemon=True).start()\nchild = os.fork()\nif child == 0:\n    while True:\n"
        "        time.sleep(1)"
    )
    assert wait_for_processes(pool, 2) == 2
    before = int(session.run("first = count\nfirst").text)
    output = session.run("count - first < 10**7, os.waitpid(child, 0)[1]")
    assert output.text == f"(True, {int(signal.SIGKILL)})"
    assert before >= 0
    session.close()
    assert wait_for_processes(pool, 0) == 0


@pytest.mark.parametrize("name", ["a child whose end would wake a stopped session", "a thread that keeps writing"])
def test_nothing_of_a_session_runs_between_calls(pool: Pool, name: str) -> None:
    program = next(program for program in programs() if program.name == name)
    session = pool.session()
    assert session.run(program.code).status == "ok"
    (interpreter,) = supervisor(pool).children()
    deadline = time.monotonic() + 300
    while interpreter.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    before = interpreter.cpu_times()
    time.sleep(0.2)
    assert interpreter.cpu_times() == before and interpreter.status() == psutil.STATUS_STOPPED
    assert session.run("1 + 1").text.splitlines()[-1] in ("2", "later")
    session.close()


def test_limits_end_a_call_with_a_sentence_and_the_next_call_starts_afresh(pool: Pool) -> None:
    session = pool.session()
    session.run("x = 5")
    output = session.run("print('begun')\nwhile True: pass", 5)
    assert (output.status, output.text) == ("timeout", f"begun\nStopped: the call took longer than 5 s. {LOST}")
    assert session.run("'x' in globals()").text == "False"
    exited = session.run("import os\nos._exit(3)")
    assert (exited.status, exited.text) == ("killed", f"The interpreter exited with status 3. {LOST}")
    crashed = session.run("import ctypes\nctypes.string_at(0)")
    assert (crashed.status, crashed.text) == ("killed", f"The interpreter was ended by SIGSEGV. {LOST}")
    session.close()


def test_long_output_is_cut_in_its_middle(pool: Pool) -> None:
    output = run(pool, "print('start', 'x' * 10**6, 'end')")
    assert output.status == "ok"
    assert LIMITS.output_characters - 10 < len(output.text) <= LIMITS.output_characters
    assert output.text.startswith("start xxx")
    assert output.text.endswith("xxx end")
    assert "its middle is left out" in output.text


def test_processor_time_memory_and_processes_are_limited(pool: Pool, bare: None) -> None:
    limits = LIMITS.model_copy(
        update={"cpu_seconds": 3, "wall_seconds": 120.0, "processes": 2, "output_characters": 300}
    )
    pool = Pool(limits)
    spent = run(pool, "while True: pass")
    assert (spent.status, spent.text) == (
        "timeout", f"Stopped: the call used more than 3 s of processor time. {LOST}",
    )  # fmt: skip
    shared = run(
        pool,
        "import mmap, os, time\nos.fork()\nx = mmap.mmap(-1, 200 << 20)\n"
        "for _ in range(200):\n    x.write(bytes(1 << 20))\ntime.sleep(100)",
    )
    assert (shared.status, shared.text) == ("killed", f"Stopped: the call used more than 256 MB of memory. {LOST}")
    assert "MemoryError" in run(pool, "bytearray(300 << 20)").text
    forks = run(pool, "import os\nif os.fork() == 0:\n    import time; time.sleep(100)\nos.fork()")
    assert "BlockingIOError" in forks.text
    pool.close()
    pool.close()
    assert run(pool, "1").text == "The sandbox does not work: it is closed"


def test_calls_of_many_threads_do_not_mix(pool: Pool) -> None:
    def work(number: int) -> bool:
        session = pool.session()
        session.run(f"x = {number}")
        right = all(session.run(f"x + {k}").text == str(number + k) for k in range(5))
        session.close()
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(24)))
    assert wait_for_processes(pool, 0) == 0


def test_a_sandbox_that_is_killed_is_started_again_and_close_leaves_nothing(pool: Pool, bare: None) -> None:
    with ThreadPoolExecutor(1) as thread:
        own = thread.submit(Pool, LIMITS).result()
    session = own.session()
    assert session.run("x = 1\nx").text == "1"  # the thread that started it has ended, the sandbox lives
    inside = everything(own)
    inside[0].kill()
    psutil.wait_procs(inside, timeout=60)
    assert session.run("x").status == "killed"
    assert session.run("'x' in globals()").text == "False"
    inside += everything(own)
    assert len(inside) == 12
    own.close()
    _, alive = psutil.wait_procs(inside, timeout=60)
    assert not alive


def everything(pool: Pool) -> list[psutil.Process]:
    """The sandbox's processes, bwrap first."""
    process = pool._processes["usual"]._process
    assert process
    bwrap = psutil.Process(process.pid)
    return [bwrap, *bwrap.children(recursive=True)]


def supervisor(pool: Pool) -> psutil.Process:
    """Of the only session that is open."""
    return next(process for process in everything(pool)[4:] if process.children())


def test_the_sandbox_ends_with_its_owner(pool: Pool) -> None:
    code = (
        "import os, sys\nfrom mathrl.params.rollout import Bubblewrap\nfrom mathrl.tools import bubblewrap\n"
        "from mathrl.tools.pool import Pool\nbubblewrap.IMPORTED['usual'] = ([], '')\n"
        "pool = Pool(Bubblewrap())\nsession = pool.session()\nsession.run('1')\n"
        "print(pool._processes['usual']._process.pid, flush=True)\ninput()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout
        bwrap = psutil.Process(int(owner.stdout.readline()))
        inside = [bwrap, *bwrap.children(recursive=True)]
        assert len(inside) == 6
        owner.kill()
    _, alive = psutil.wait_procs(inside, timeout=300)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_the_sandbox_is_in_namespaces_of_its_own(pool: Pool) -> None:
    session = pool.session()
    session.run("1")
    process = supervisor(pool)
    for name in ("pid", "net", "ipc", "uts", "mnt", "user"):
        assert Path(f"/proc/self/ns/{name}").readlink() != Path(f"/proc/{process.pid}/ns/{name}").readlink(), name
    status = Path(f"/proc/{process.children()[0].pid}/status").read_text(encoding="utf-8")
    for line in ("Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"):
        assert line in status
    session.close()


def test_a_library_in_a_folder_with_a_space_is_found() -> None:
    listed = "/my envs/a.so:\n\tlibpython3.so => /my envs/lib/libpython3.so (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n"
    assert bubblewrap.LIBRARY.findall(listed) == ["/my envs/lib/libpython3.so", "/lib64/ld-linux.so.2"]


def test_without_bubblewrap_the_tool_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"bubblewrap is missing.*apt-get install bubblewrap libseccomp2"):
        open_tool(Bubblewrap())
    with pytest.raises(ValueError, match="kind is none"):
        open_tool(NoTool())


def test_a_sandbox_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UserError, match="cannot run here: bwrap: No permissions to create a new namespace"):
        open_tool(Bubblewrap())
