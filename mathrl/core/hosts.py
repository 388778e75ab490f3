"""A stage on several machines: it starts itself on all of them by DeepSpeed's launcher, and waits.

Without torch. The machines share the checkout and the state folder; on each the launcher starts as many
processes as its line of the hostfile has slots, which then find WORLD_SIZE set and start no others.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from mathrl.core.errors import UserError

EXIT_STOPPED = 75


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
    launcher = subprocess.Popen([
        sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", hostfile, "--no_local_rank",
        "--log_level", "warning", *(["--no_ssh_check", "--master_addr", "127.0.0.1"] if here else []),
        "--module", main.name, *sys.argv[1:],
    ])  # fmt: skip
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        launcher.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    status = launcher.wait()
    return EXIT_STOPPED if stopped else status
