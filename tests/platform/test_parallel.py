"""Steps at the same time, through real `dvc repro` processes: at once, in order, ended by a failure and by Ctrl-C."""

import fcntl
import json
import os
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.guard import is_alive
from mathrl.params.load import dump_yaml
from mathrl.tasks.graph import last_maker, needed_steps
from mathrl.tasks.repro import Repro, _repair_locks, environment, stages_up_to_date, was_stopped
from mathrl.tasks.runs import places_for, side_by_side
from tests.conftest import wait_for
from tests.platform.conftest import make_dvc_folder

Checkout = Any
pytestmark = pytest.mark.timeout(1800)
HOST = os.uname().nodename
FLOW = """
import os
from pathlib import Path
from prefect import flow
from mathrl.tasks.graph import Graph
from mathrl.tasks.repro import environment
from mathrl.tasks.runs import run_graph

@flow
def at_once():
    run_graph(Graph(Path.cwd(), "side/dvc.yaml"), environment(), lambda text: print(text, end="", flush=True),
              lambda graph, step: print("ENDED", step, flush=True), jobs=2)

print("PID", os.getpid(), flush=True)
at_once()
"""
# Writes its file only after the other's signal is there: alone, one after another, neither would end.
MEET = "touch {own}.here; for n in $(seq 6000); do [ -e {other}.here ] && break; sleep 0.1; done; [ -e {other}.here ]"


def write(checkout: Checkout, stages: dict[str, dict[str, Any]]) -> None:
    side = checkout.folder / "side"
    side.mkdir(exist_ok=True)
    (side / "dvc.yaml").write_text(dump_yaml({"stages": stages}))


def test_what_needs_nothing_runs_at_once_and_what_failed_holds_up_its_own_alone(checkout: Checkout) -> None:
    meeting = {
        own: {"cmd": MEET.format(own=own, other=other) + f" && echo {own} > {own}", "outs": [own]}
        for own, other in (("a", "b"), ("b", "a"))
    }
    both = {"cmd": "cat a b > both", "deps": ["a", "b"], "outs": ["both"]}
    wrong = {"cmd": "echo 'error: no room' && exit 2", "deps": ["both"], "outs": ["wrong"]}
    after, beside = ({"cmd": f"touch {name}", "deps": [dep], "outs": [name]}
                     for name, dep in (("after", "wrong"), ("beside", "both")))  # fmt: skip
    write(checkout, {**meeting, "both": both, "wrong": wrong, "after": after, "beside": beside})
    failed = checkout.run(checkout.executable, "-c", FLOW, ok=False)
    side = checkout.folder / "side"
    assert failed.returncode and "stage side/dvc.yaml:wrong failed: no room" in failed.stderr
    assert (side / "both").read_text() == "a\nb\n" and (side / "beside").exists() and not (side / "after").exists()
    assert "a: Running stage 'side/dvc.yaml:a'" in failed.stdout.replace('"', "'")
    assert "git add" not in failed.stdout, "DVC's advice concerns no run"

    # Again, with the mistake taken out: only what is missing runs.
    write(
        checkout, {**meeting, "both": both, "wrong": wrong | {"cmd": "touch wrong"}, "after": after, "beside": beside}
    )
    done = checkout.run(checkout.executable, "-c", FLOW)
    ended = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ENDED")]
    assert ended == ["wrong", "after"], "what was skipped is not reported again"


def test_a_signal_ends_every_step(checkout: Checkout, tmp_path: Path) -> None:
    write(
        checkout,
        {name: {"cmd": f"echo $$ > {tmp_path}/{name}; sleep 600", "outs": [f"long_{name}"]} for name in ("x", "y")},
    )
    flow = subprocess.Popen([checkout.executable, "-c", FLOW], cwd=checkout.folder, env=checkout.env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert flow.stdout is not None
    flow_pid = int(flow.stdout.readline().split()[1])  # of the fork alone, and not of the program that forwards signals
    files = [tmp_path / name for name in ("x", "y")]
    wait_for(lambda: flow.poll() is not None or all(file.exists() and file.read_text().strip() for file in files))
    os.kill(flow_pid, signal.SIGINT)
    assert flow.wait(timeout=120) != 0
    wait_for(lambda: not any(is_alive(int(file.read_text())) for file in files), "the end of both steps", 300)
    assert not (checkout.folder / "side" / "long_x").exists()


def test_a_step_is_started_again_where_dvc_itself_was_busy() -> None:
    failed = "ERROR: failed to reproduce 'side/dvc.yaml:a': "
    assert was_stopped([failed]), "the timeout of its database has no text"
    assert not was_stopped([failed + "failed to run: touch a, exited with 2"])
    lost = failed + "[Errno 2] No such file or directory: "
    assert was_stopped([lost + "'/a/.dvc/cache/runs/56/567a/.SZ-zSXa0.tmp'"]), "another repro removed it as corrupted"
    assert not was_stopped([lost + "'/a/.dvc/cache/files/56/567a'"])


def test_needs_and_places() -> None:
    stages = {
        "curate": {"outs": ["p/c"]},
        "sft": {"deps": ["p/c/splits/sft.jsonl", "mathrl/models"], "outs": [{"p/sft": {"cache": True}}]},
        "near": {"deps": ["p/sft2"], "outs": ["p/near"]},
        "test": {"deps": ["p/sft/model", "p/c/splits/test.jsonl", "p/sft"], "metrics": ["p/test.json"]},
        "summary": {"deps": ["p/test.json"]},
    }
    needs, outside = needed_steps(stages)
    assert needs == {"curate": [], "sft": ["curate"], "near": [], "test": ["sft", "curate"], "summary": ["test"]}
    assert outside == {"p/sft2"}, "what no step makes, without the code"
    pipeline = {"curate": {"outs": ["data/curated"]}, "sft": {"outs": ["models/sft"]}, "rl": {"outs": ["models/rl"]}}
    assert last_maker(pipeline, {"data/curated/rl.jsonl", "models/sft", "p/sft2"}) == "sft"
    assert last_maker(pipeline, outside) is None
    assert places_for(4, 2, ["0", "1", "2", "3", "4"]) == ["0,1", "2,3"]
    assert places_for(1, 1, ["GPU-a", "GPU-b"]) == ["GPU-a"] and places_for(2, 8, ["0", "1"]) == ["0,1"]
    assert places_for(3, 2, []) == ["", "", ""]


def test_steps_side_by_side_give_up_cores_while_they_wait() -> None:
    assert side_by_side({"PATH": "x"}) == {"OMP_WAIT_POLICY": "PASSIVE", "PATH": "x"}
    assert side_by_side({"OMP_WAIT_POLICY": "ACTIVE"})["OMP_WAIT_POLICY"] == "ACTIVE"


def test_a_list_of_locks_that_another_dvc_is_writing_is_left_alone(tmp_path: Path) -> None:
    """DVC empties the file before it writes it, and holds rwlock.lock meanwhile."""
    file = tmp_path / ".dvc" / "tmp" / "rwlock"
    file.parent.mkdir(parents=True)
    with file.with_name("rwlock.lock").open("wb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        file.touch()
        repairs = threading.Thread(target=_repair_locks, args=[tmp_path])
        repairs.start()
        repairs.join(0.3)  # it waits for DVC
        with file.open("r+") as stream:
            stream.write("{}")
    repairs.join()
    assert file.read_text() == "{}"
    file.write_text("")
    _repair_locks(tmp_path)
    assert not file.exists(), "nobody writes it"


def test_machines_that_share_the_state_keep_their_progress_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers do, whose processes have the same numbers."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    files = list[Path]()
    for host in ("node1", "node2.cluster"):
        monkeypatch.setattr(os, "uname", partial(SimpleNamespace, nodename=host))
        files.append(Path(environment()[Variable.PROGRESS]))
        files[-1].write_text(host)
    assert [file.read_text() for file in files] == ["node1", "node2.cluster"]


@pytest.mark.parametrize(("killed", "host"), [(True, HOST), (False, HOST), (True, f"not-{HOST}")])
def test_a_run_waits_for_the_end_of_one_that_was_killed(
    tmp_path: Path, forked_programs: None, killed: bool, host: str
) -> None:
    """DVC names a living holder of its locks as "busy"; one that a killed run left behind ends within seconds.

    Whether another machine's run was killed cannot be seen.
    """
    make_dvc_folder(tmp_path, {
        "a": {"cmd": "echo 1 > out", "outs": ["out"]}, "b": {"cmd": "cat out > end", "deps": ["out"], "outs": ["end"]},
    })  # fmt: skip
    env, printed, file = os.environ | {"DVC_NO_ANALYTICS": "1"}, list[str](), tmp_path / ".dvc" / "tmp" / "rwlock"
    run = subprocess.Popen(["sleep", "600"])  # the run that started the holder, as far as anybody can see
    held = f"echo; read -t 600; rm {file}"  # as DVC, it leaves the list when it ends
    of_run = env | {Variable.PROGRESS: f"/tmp/progress-{host}-{run.pid}.json-qwen2.5-rl"}
    holder = subprocess.Popen(["bash", "-c", held], env=of_run, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline()  # it is bash by now, with its own environment
    lock = {"pid": holder.pid, "cmd": "dvc repro"}
    file.write_text(json.dumps({"read": {}, "write": {f"{tmp_path}/out": lock}}))
    if killed:
        run.kill()
        run.wait()  # a signal takes a moment

    def show(text: str) -> None:
        printed.append(text)
        if "waiting" in text:
            holder.communicate()  # the end of its input ends it

    try:
        repro = Repro(tmp_path, "a", env, show)
        if killed and host == HOST:
            repro.finish("a")  # without the wait: 'out' is busy
            assert "waiting for an earlier run in this folder to end" in printed[0]
            assert stages_up_to_date(tmp_path, ["a", "b"], env) == ["a"]
        else:
            with pytest.raises(UserError, match=rf"is in use by process {holder.pid} \(dvc repro\)"):
                repro.finish("a")
            assert "waiting" not in "".join(printed) and "is busy" in "".join(printed)
    finally:
        run.kill()
        holder.communicate()
        run.wait()
