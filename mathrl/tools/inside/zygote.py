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
from typing import Any

from mathrl.tools.inside import kernel
from mathrl.tools.inside.interpreter import MB
from mathrl.tools.inside.supervisor import supervise

READY = b"ready"
PAGE = os.sysconf("SC_PAGE_SIZE")


def main(argument: str) -> None:
    request = json.loads(argument)
    if request["user"] is not None:
        _become(request["user"])
    with open(request["filter"], "rb") as file:
        program = file.read()
    for module in request["modules"]:
        importlib.import_module(module)
    exec(request["first_use"], {})
    limits = request["limits"]
    with open("/proc/self/statm", encoding="ascii") as file:
        limits["address_space"] = int(file.read().split()[0]) * PAGE + limits["memory_mb"] * MB
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # collections in the sessions leave these objects' pages shared
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


def _serve(control: socket.socket, limits: dict[str, Any], program: bytes) -> None:
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
            pid = _open_session(control, passed[0], limits, program)
            os.close(passed[0])
            if pid:
                sessions[pid] = os.pidfd_open(pid)
            control.send(b"%d" % pid)
        elif word == b"kill" and (pid := int(numbers[0])) in sessions:
            os.kill(pid, signal.SIGKILL)


def _open_session(control: socket.socket, client: int, limits: dict[str, Any], program: bytes) -> int:
    """Fork a supervisor in namespaces of its own; its pid, or 0 where the kernel refused."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            control.close()
            os.close(reading)
            _in_new_namespaces(client, writing, limits, program)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as pipe:
        number = pipe.read()
    os.waitpid(parent, 0)
    return int(number or b"0")


def _in_new_namespaces(client: int, writing: int, limits: dict[str, Any], program: bytes) -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    pid = os.fork()
    if pid:
        os.write(writing, b"%d" % pid)
        os._exit(0)
    os.close(writing)
    supervise(socket.socket(fileno=client), limits, program)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
