"""`mathrl watch`: a run that goes on is followed, a half-written line waited for; the exit status says how it is."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.other_trainers import watch
from mathrl.core.errors import UserError
from tests.imports.conftest import verl_metrics
from tests.imports.test_import import command


def lines(first: int, last: int, **changes: float) -> str:
    rows = ({"step": step, "data": verl_metrics(step) | changes} for step in range(first, last + 1))
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_one_look_at_a_healthy_run(verl_run: Path, home: Path) -> None:
    status, printed = command("watch", verl_run, "--idle", "0")
    assert status == 0 and printed.startswith("step 40: green; ") and not home.exists(), "no record without --name"


def test_a_red_run_ends_with_1(verl_run: Path, home: Path) -> None:
    (verl_run / "run.jsonl").write_text(lines(1, 20) + lines(21, 40, **{"actor/kl_loss": 9.0, "actor/pg_loss": 1.0}))
    with (verl_run / "run.jsonl").open("a") as stream:
        stream.write('{"step": 41, "data": {"actor/grad_norm": NaN}}\n')
    status, printed = command("watch", verl_run, "--idle", "0")
    assert status == 1 and "- red, loss, from step 41" in printed


def test_a_run_that_nothing_can_be_said_of_ends_with_2(tmp_path: Path, home: Path) -> None:
    (tmp_path / "run.csv").write_text("step,speed\n1,3\n2,4\n")
    status, printed = command("watch", tmp_path, "--idle", "0")
    assert status == 2 and "unknown; 0 of " in printed


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path: Path, home: Path) -> None:
    whole = lines(1, 3)
    (tmp_path / "run.jsonl").write_text(whole[:-30])
    assert "step 2: " in command("watch", tmp_path, "--idle", "0")[1]
    (tmp_path / "run.jsonl").write_text(whole)
    assert "step 3: " in command("watch", tmp_path, "--idle", "0")[1]


def test_a_run_that_goes_on_is_followed_and_stopped(tmp_path: Path, home: Path) -> None:
    """The webhook gets the finding; the record follows; the watched folder is not written to."""
    received: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "run.jsonl").write_text(lines(1, 5))
    words = ["watch", folder, "--every", "0.2", "--stop-on-red", "--name", "w", "--webhook"]
    words.append(f"http://127.0.0.1:{server.server_port}/")
    program = "import sys; from mathrl.cli.main import main; main()"
    child = subprocess.Popen([sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline().startswith("step 5: ")
        with (folder / "run.jsonl").open("a") as stream:
            stream.write('{"step": 6, "data": {"actor/grad_norm": N')
            stream.flush()
            time.sleep(0.6)
            assert child.poll() is None
            stream.write("aN}}\n")
        assert child.wait(300) == 1
    finally:
        child.kill()
        server.shutdown()
    assert [finding["rule"] for finding in received] == ["loss"] and received[0]["run"] == str(folder)
    assert [path.name for path in folder.iterdir()] == ["run.jsonl"]
    assert (home / "records" / "imported-w" / "metrics.jsonl").read_text().count("\n") == 6


def test_a_folder_without_a_run_is_an_error_at_one_look(tmp_path: Path, home: Path) -> None:
    with pytest.raises(UserError, match="no run of another trainer"):
        command("watch", tmp_path, "--idle", "0")


def test_what_is_waited_for_is_printed_once(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder"):
        watch(tmp_path / "nowhere", every=0.1, idle=0.01)
    assert capsys.readouterr().out == f"waiting: {tmp_path / 'nowhere'}: no such folder\n"
