r"""Cold sessions and warm calls of the sandbox, beside the same programs as subprocesses and through `run_code`.

    python benchmarks/sandbox.py [PROGRAMS] [THREADS]

A cold session is opened, runs one program and is closed; a warm call is one more program in an open session. Programs
are short solutions with and without sympy. The subprocess is the peer without a sandbox: `python -c PROGRAM`, which
imports what it needs each time. `run_code` is a server of SandboxFusion's form on loopback that runs each program in a
cold session of the same sandbox. Prints, per way, programs per second of wall time and milliseconds of processor time
per program (of this process and the sandbox together), which other work on the machine disturbs less.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mathrl.params.rollout import Bubblewrap, Http
from mathrl.tools.open_tool import open_tool
from mathrl.tools.pool import Pool
from mathrl.tools.tool import Session, Tool
from tests.tools.run_code_server import RunCodeServer

PROGRAMS = (
    ("print(sum(k * k for k in range(1, 101)))", "338350"),
    ("from math import comb\nprint(comb(20, 7))", "77520"),
    ("import sympy\nx = sympy.symbols('x')\nprint(sympy.expand((x + 1)**3))", "x**3 + 3*x**2 + 3*x + 1"),
    ("from fractions import Fraction\nprint(Fraction(1, 3) + Fraction(1, 6))", "1/2"),
)


def cpu_seconds() -> float:
    """Processor time of this process and its children, the ended among them."""
    seconds = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def checked(run: Callable[[str], str]) -> Callable[[int], None]:
    def work(number: int) -> None:
        code, expected = PROGRAMS[number % len(PROGRAMS)]
        if (text := run(code).strip()) != expected:
            raise SystemExit(f"{code!r} gave {text!r}, not {expected!r}")

    return work


def cold(tool: Tool) -> Callable[[str], str]:
    def run(code: str) -> str:
        session = tool.session()
        try:
            return session.run(code).text
        finally:
            session.close()

    return run


def warm(tool: Tool) -> Callable[[str], str]:
    own = threading.local()

    def run(code: str) -> str:
        if not hasattr(own, "session"):
            own.session = tool.session()
        session: Session = own.session
        return session.run(code).text

    return run


def plain(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def measure(name: str, run: Callable[[str], str], count: int, threads: int) -> None:
    work = checked(run)
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(work, range(2 * threads)))
        cpu, start = cpu_seconds(), time.perf_counter()
        list(executor.map(work, range(count)))
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    print(f"| {name} | {count} | {count / seconds:.1f} | {1000 * cpu / count:.2f} |", flush=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    start = time.perf_counter()
    pool = Pool(Bubblewrap(wall_seconds=120, calls=threads))
    print(f"{threads} threads; the sandbox was ready after {time.perf_counter() - start:.1f} s\n")
    server = RunCodeServer("127.0.0.1", 0, pool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = open_tool(Http(url=server.url, wall_seconds=120, requests=threads))
    print("| way | programs | per second | ms of processor time |\n|---|---|---|---|")
    measure("sandbox, warm call", warm(pool), 10 * count, threads)
    measure("sandbox, cold session", cold(pool), count, threads)
    measure("run_code, cold session", cold(remote), count, threads)
    measure("subprocess, no sandbox", plain, max(2 * threads, count // 10), threads)
    remote.close()
    server.shutdown()
    server.server_close()
    pool.close()


if __name__ == "__main__":
    main()
