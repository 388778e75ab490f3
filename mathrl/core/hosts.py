"""A stage on several machines: it starts itself on all of them by DeepSpeed's launcher, and waits.

Without torch. The machines share the checkout and the state folder; on each the launcher starts as many
processes as its line of the hostfile has slots, which then find WORLD_SIZE set and start no others.

The launcher hands few variables on, on a command line that everybody on the machines can read. So what the
stage was started with (MATHRL_…, the tracker's and the hub's addresses and keys) goes through a file that its
owner alone reads, in a folder of the state that all ranks share, and the launcher starts this module:
`python -m mathrl.core.hosts FOLDER STAGE'S MODULE [ARGUMENTS]`.
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
    """Run `python -m <this module> <argv>` on the machines of the hostfile; its exit status.

    None where that has been done already (WORLD_SIZE is set). A signal ends the processes at once, and the
    status is 75: started again, the stage goes on from its last checkpoint.

    Raises:
        UserError: the hostfile or DeepSpeed is not there.
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
    here = all(words[0] in ("localhost", "127.0.0.1", socket.gethostname()) for words in lines if words)
    state_root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=state_root()))  # which nobody else may enter
    handed = {name: value for name, value in os.environ.items() if name.startswith(HANDED_DOWN)}
    write_json(folder / ENVIRONMENT, handed)
    try:
        return _launched([
            sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", hostfile, "--no_local_rank",
            "--log_level", "warning", *(["--no_ssh_check", "--master_addr", "127.0.0.1"] if here else []),
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
    """A rank: the variables of whoever started the stage, then the stage."""
    folder, module, *arguments = sys.argv[1:]
    os.environ.update(read_json(Path(folder) / ENVIRONMENT))
    os.environ[Variable.HOSTS_FOLDER] = folder
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
