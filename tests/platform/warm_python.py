"""A `python` that forks stages from a process which has made their heaviest imports, for checkouts of real stages.

`python warm_python.py FOLDER` writes FOLDER/python, listens, and prints a line. FOLDER comes first on PATH: what DVC
starts as `python -m mathrl.stages.…` then is a fork, with the caller's folder, environment and streams, that imports
mathrl from the caller's folder; its exit status, and signals for it, are passed on. All else is the usual Python.
"""

import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
words = sys.argv[1:]
if words[:1] != ["-m"] or not words[1].startswith("mathrl.stages."):
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
request = json.dumps(dict(words=words[1:], folder=os.getcwd(), environment=dict(os.environ))).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
status = int.from_bytes(server.recv(4), "big", signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def preload() -> None:
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import torch._dynamo

    import mathrl.models.transformers_import  # as a stage imports transformers

    assert matplotlib.figure and torch._dynamo and mathrl.models.transformers_import
    for name in [name for name in sys.modules if name.split(".")[0] == "mathrl"]:
        del sys.modules[name]  # a checkout has its own
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"


def received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A client's request and its three streams."""
    header, streams, _, _ = socket.recv_fds(client, 4, 3)
    text = b""
    while len(text) < int.from_bytes(header, "big"):
        text += client.recv(1 << 20)
    request: dict[str, Any] = json.loads(text)
    return request, streams


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns in the forked processes, with the request."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client = listener.accept()[0]
                request, streams = received(client)
                pid = os.fork()
                if pid == 0:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return request
                for stream in streams:
                    os.close(stream)
                selector.register(client, selectors.EVENT_READ, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
            elif isinstance(key.fileobj, socket.socket):
                numbers = key.fileobj.recv(16)
                for number in numbers or [signal.SIGKILL]:  # the client has been killed
                    os.kill(key.data, number)
                if not numbers:
                    selector.unregister(key.fileobj)
            else:
                pid, client = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if client in selector.get_map():
                    selector.unregister(client)
                    client.sendall(status.to_bytes(4, "big", signed=True))
                client.close()
                selector.unregister(key.fileobj)
                os.close(key.fd)


def main(folder: Path) -> dict[str, Any]:
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    script = folder / "python"
    script.write_text(CLIENT.format(python=sys.executable, address=address))
    script.chmod(0o755)
    preload()
    print("ready", flush=True)
    return serve(listener)


if __name__ == "__main__":
    forked = main(Path(sys.argv[1]))
    os.chdir(forked["folder"])
    os.environ.clear()
    os.environ.update(forked["environment"])
    sys.path[0] = forked["folder"]
    sys.argv = forked["words"]
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(write_through=True)  # type: ignore[union-attr]
    runpy.run_module(forked["words"][0], run_name="__main__", alter_sys=True)
