"""Where the processes of a stage have their places, and meet: on one machine, or on those of a hostfile."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mathrl.core import hosts, launch
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver that lists four."""
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(launch, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("device", "visible", "slots"),
    [("auto", None, 4), ("cuda", "1,3", 2), ("auto", "GPU-4a,GPU-4b", 2), ("auto", "", None), ("cpu", None, None)],
)
def test_a_gpu_or_a_quarter_of_a_core_is_a_slot(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, slots: int | None
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = 4 * len(os.sched_getaffinity(0)) if slots is None else slots
    assert launch.local_slots(device)[0] == expected


def test_processes_for_several_machines_are_refused_on_one_unless_a_stage_only_samples(
    gpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch.clamped(4, "auto", fewer=False) == 4 and not capsys.readouterr().err
    assert launch.clamped(8, "auto", fewer=False) == 4, "as the demo's two on one GPU"
    assert launch.clamped(128, "auto", fewer=True) == 4
    assert "run.processes=128 but this machine has 4 GPUs; using 4 processes" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"128 but this machine has 4 GPUs: .* training\.deepspeed\.hostfile"):
        launch.clamped(128, "auto", fewer=False)


def test_ranks_of_another_launcher_meet_where_all_of_them_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv(Variable.RENDEZVOUS, raising=False)
    monkeypatch.delenv(Variable.HOSTS_FOLDER, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"several machines: .*training\.deepspeed\.hostfile"):
        launch.gather(1, "figures")
    monkeypatch.setenv(Variable.HOSTS_FOLDER, str(tmp_path))
    for rank in (3, 2, 1, 0):
        monkeypatch.setenv("RANK", str(rank))
        found = launch.gather({"rank": rank}, "figures")
    assert found == [{"rank": rank} for rank in range(4)]


def test_what_a_stage_was_started_with_reaches_other_machines_past_every_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostfile").write_text(f"{socket.gethostname()} slots=2\n")
    for name, value in {"STATE": str(tmp_path / "state"), "SERVE_KEY": "secret", "HOME": "/shared"}.items():
        monkeypatch.setenv(f"MATHRL_{name}", value)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(hosts.importlib.util, "find_spec", lambda name: True)
    main = SimpleNamespace(__spec__=SimpleNamespace(name="mathrl.stages.sft"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    seen: list[str] = []

    def launched(command: list[str]) -> int:
        """What another machine would run, with nothing of this one's environment."""
        assert "secret" not in " ".join(command)
        at = command.index("mathrl.core.hosts")
        folder = Path(command[at + 1])
        assert folder.stat().st_mode & 0o777 == 0o700 and command[at + 2] == "mathrl.stages.sft"
        (tmp_path / "stage.py").write_text(
            "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv, __name__]))"
        )
        there = subprocess.run(
            [sys.executable, "-m", *command[at : at + 2], "stage", "--two", "words here"],
            text=True,
            env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
            capture_output=True,
            check=True,
        )
        seen.extend([there.stdout, str(folder)])
        return 3

    monkeypatch.setattr(hosts, "_launched", launched)
    assert hosts.launch_on_hosts(str(tmp_path / "hostfile")) == 3
    (environment, arguments, name), folder = json.loads(seen[0]), seen[1]
    assert environment["MATHRL_SERVE_KEY"] == "secret" and environment["MATHRL_HOME"] == "/shared"
    assert environment[Variable.HOSTS_FOLDER] == folder and not Path(folder).exists()
    assert arguments[1:] == ["--two", "words here"] and name == "__main__"
