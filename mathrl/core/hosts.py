"""A stage on several machines: it starts itself on all of them through DeepSpeed's launcher, and waits.

Without torch. The machines share the checkout and the state folder; on each the launcher starts one process per
slot of its line in the hostfile. These processes have WORLD_SIZE set, and start no others.

The launcher hands on few environment variables, and on a command line that every user of the machines can read.
The stage's variables (MATHRL_…, addresses and keys of the tracker and the hub) therefore go through a file that
only its owner can read, in a folder of the state that all ranks share, and the launcher starts this module:
`python -m mathrl.core.hosts FOLDER STAGE_MODULE [ARGUMENTS]`.
"""

import importlib.util
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.exit_status import EXIT_STOPPED
from mathrl.core.files import read_json, write_json
from mathrl.core.paths import state_root

ENVIRONMENT = "environment.json"
HANDED_DOWN = ("MATHRL_", "MLFLOW_", "HF_", "DS_", "AWS_")


def launch_on_hosts(hostfile: str) -> int | None:
    """Run `python -m <main module> <argv>` on the machines of the hostfile; returns its exit status.

    Returns None in a process that a launcher started (WORLD_SIZE is set). A signal ends the processes at once,
    with status 75: started again, the stage resumes from its last checkpoint.

    Raises:
        UserError: the hostfile or DeepSpeed is missing.
    """
    if "WORLD_SIZE" in os.environ:
        return None
    if not Path(hostfile).is_file():
        raise UserError(
            f"training.deepspeed.hostfile: no file {hostfile}; write one with lines such as `node1 slots=8`"
        )
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError("training.deepspeed.hostfile needs DeepSpeed: run `make engines`, or leave it empty")
    main = sys.modules["__main__"].__spec__
    assert main is not None, "a stage is run with -m"
    lines = [line.partition("#")[0].split() for line in Path(hostfile).read_text().splitlines()]
    only_this_machine = all(words[0] in ("localhost", "127.0.0.1", socket.gethostname()) for words in lines if words)
    state_root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=state_root()))  # mode 0700
    variables = {name: value for name, value in os.environ.items() if name.startswith(HANDED_DOWN)}
    write_json(folder / ENVIRONMENT, variables)
    try:
        return _launched([
            sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", hostfile, "--no_local_rank",
            "--log_level", "warning", *(["--no_ssh_check", "--master_addr", "127.0.0.1"] if only_this_machine else []),
            "--module", __name__, str(folder), main.name, *sys.argv[1:],
        ])  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launched(command: list[str]) -> int:
    launcher = subprocess.Popen(command)
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        launcher.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    status = launcher.wait()
    return EXIT_STOPPED if stopped else status


def main() -> None:
    """A rank: sets the variables of the process that started the stage, then runs the stage."""
    folder, module, *arguments = sys.argv[1:]
    os.environ.update(read_json(Path(folder) / ENVIRONMENT))
    os.environ[Variable.HOSTS_FOLDER] = folder
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
