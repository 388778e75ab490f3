"""Programs that try to break out of the sandbox, to harm the machine or to cheat: none does, and the pool goes on."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mathrl.tools.pool import Pool, PooledSession
from tests.tools.sandbox import LIMITS, Machine, Program, answer, check, programs, wait_for_processes

PROGRAMS = programs()
BATCH = 16
MOUNTS = Path("/proc/self/mountinfo")


@pytest.fixture(scope="module")
def other(pool: Pool, target: Machine) -> PooledSession:
    """A session with a secret that lives beside all others."""
    session = pool.session()
    code = f"other_secret = '{target.secret}'\nopen('/tmp/other_secret', 'w').write(other_secret) and None"
    assert session.run(code).status == "ok"
    return session


def test_there_are_enough_programs_and_each_has_a_name() -> None:
    assert len(PROGRAMS) >= 120
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    known = {"ok", "error", "timeout", "killed"}
    assert all(program.statuses and program.statuses <= known for program in PROGRAMS)


@pytest.mark.parametrize("start", range(0, len(PROGRAMS), BATCH))
def test_nothing_escapes(start: int, pool: Pool, target: Machine, other: PooledSession) -> None:
    mounts = MOUNTS.read_text(encoding="utf-8")

    def run(program: Program) -> list[str]:
        session = pool.session()
        output = answer(session, program, target)
        after = session.run("1 + 1")
        session.close()
        wrong = check(program, output, target.secret)
        if output.status in ("timeout", "killed") and (after.status, after.text) != ("ok", "2"):
            wrong.append(f"{program.name}: the next call, of a new interpreter: {after}")
        return wrong

    with ThreadPoolExecutor(LIMITS.calls) as threads:
        wrong = [fault for faults in threads.map(run, PROGRAMS[start : start + BATCH]) for fault in faults]
    assert not wrong, "\n\n".join(wrong)
    target.assert_unharmed()
    fresh = pool.session()
    assert fresh.run("import os\nos.listdir('/tmp'), os.listdir('/dev/shm')").text == "([], [])"
    fresh.close()
    expected = repr((target.secret, ["other_secret"]))
    assert other.run("import os\nother_secret, os.listdir('/tmp')").text == expected
    assert wait_for_processes(pool, 2) == 2  # the other session's supervisor and interpreter
    assert MOUNTS.read_text(encoding="utf-8") == mounts
