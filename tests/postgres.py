"""A PostgreSQL server of a test's own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import hold_port


@contextmanager
def postgres_server(user: str) -> Iterator[str]:
    """The URI of an empty database on loopback. PostgreSQL refuses to run as root, then `nobody` runs it."""
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("no PostgreSQL here (initdb, pg_ctl)")
    folder, held = Path(tempfile.mkdtemp(prefix="postgres-")), hold_port()  # pytest's are for their owner alone
    port = held.getsockname()[1]
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
        as_user = {"user": "nobody", "group": "nogroup", "cwd": folder}
    data, password = folder / "data", folder / "password"
    password.write_text("pa55-of-the-database")
    password.chmod(0o644)

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **as_user)
        assert done.returncode == 0, done.stdout + done.stderr

    run("initdb", "-D", str(data), "-U", user, "--pwfile", str(password), "-A", "scram-sha-256", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
    run("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")
    try:
        yield f"postgresql://{user}:pa55-of-the-database@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        held.close()
        shutil.rmtree(folder)
