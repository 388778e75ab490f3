"""The first program inside the sandbox: it imports the libraries once and forks a session from itself on request.

    python zygote.py '{"control": 5, "filter": 6, "modules": ["sympy"],
                      "first_use": "import sympy …", "user": null, "limits": {…}}'

The control socket takes `open` with the session's socket as ancillary data, answered by its number, and
`kill NUMBER`. Nothing of a response ever runs in this process, nor reaches it.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from mathrl.tools.inside import kernel
from mathrl.tools.inside.messages import MB, READY
from mathrl.tools.inside.supervisor import supervise

PAGE = os.sysconf("SC_PAGE_SIZE")


def main(argument: str) -> None:
    request = json.loads(argument)
    if request["user"] is not None:
        _become(request["user"])
    _own_namespaces()
    with os.fdopen(request["filter"], "rb") as file:
        program = file.read()
    for module in request["modules"]:
        importlib.import_module(module)
    exec(request["first_use"], {})
    limits = request["limits"]
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * PAGE
    limits["address_space"] = size + limits["memory_mb"] * MB
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # collections in the sessions leave these objects' pages shared
    kernel.use_huge_pages()
    control = socket.socket(fileno=request["control"])
    control.send(READY)
    _serve(control, limits, program)


def _become(user: int) -> None:
    """As root: mount /proc, then become a user without rights, for whom the kernel counts processes."""
    kernel.mount("proc", "/proc", "proc", kernel.INERT)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # /proc/self belongs to this user again


def _own_namespaces() -> None:
    """Go on in a child that has all capabilities in namespaces of its own, to make those of the sessions there."""
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    kernel.new_user_namespace(processes, kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    os.close(processes)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        os._exit(status != 0)


def _serve(control: socket.socket, limits: dict[str, Any], program: bytes) -> None:
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    sessions: dict[int, int] = {}  # pid of the supervisor → a file descriptor that is readable once it has ended
    while True:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        for ended in sessions.values():
            poll.register(ended, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for pid in [pid for pid, ended in sessions.items() if ended in ready]:
            os.waitpid(pid, 0)
            os.close(sessions.pop(pid))
        if control.fileno() not in ready:
            continue
        message, passed, _, _ = socket.recv_fds(control, 100, 1)
        if not message:
            return
        word, *numbers = message.split()
        if word == b"open":
            pid = _open_session(control, socket.socket(fileno=passed[0]), own_pids, limits, program)
            sessions[pid] = os.pidfd_open(pid)
            control.send(b"%d" % pid)
        elif word == b"kill" and (pid := int(numbers[0])) in sessions:
            os.kill(pid, signal.SIGKILL)


def _open_session(
    control: socket.socket, client: socket.socket, own_pids: int, limits: dict[str, Any], program: bytes
) -> int:
    """Fork a supervisor as the first process of a new pid namespace; its pid here."""
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            os.close(own_pids)
            supervise(client, limits, program)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    client.close()
    kernel.enter(own_pids, kernel.CLONE_NEWPID)
    return pid


if __name__ == "__main__":
    main(sys.argv[1])
