"""A `python` and a `dvc` that fork programs from a process which has made their imports: they take seconds each time.

`python -m tests.warm_python FOLDER PID` makes the imports, writes FOLDER/python and FOLDER/dvc, and listens until the
process PID ends. A program that they are given and that is named in MODULES, ROOMS or OWN is a fork,
with the caller's folder, environment and streams and in a process group of its own; its exit status, and signals for
it, are passed on. It imports mathrl from the caller's folder, which costs nothing where that is the same code.
`sys.executable` of a fork is FOLDER/python. All else is the usual Python, and so is everything while the file exists
that USUAL_PYTHON_IF names: a fork is not in its caller's process group, which matters to what ends a whole group.
"""

import atexit
import gc
import importlib
import logging
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import typing
import weakref
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = ("dvc", "uvicorn", "prefect", "prefect.engine", "prefect.flow_engine", "mlflow", "mathrl.tracking.mirror",
           "mathrl.sweeps.run", "ipykernel_launcher")  # fmt: skip
ROOMS = ("mathrl.stages.", "tests.", "benchmarks.")
# What a program imports that is given by -c.
OWN = ("from mathrl.cli", "from mathrl.compose", "from mathrl.core.code_values", "from mathrl.params",
       "from mathrl.recipes", "from mathrl.stages.", "from mathrl.tasks.", "from mathrl.tracking", "from tasks.",
       "from prefect.server.database", "import mathrl, ")  # fmt: skip
IMPORTS = ("matplotlib.figure", "matplotlib.backends.backend_agg", "torch._dynamo",
           "mathrl.models.transformers_import", "mathrl.models.base", "mathrl.trainers.rl",
           *(name for name in ("deepspeed", "wandb") if find_spec(name)),
           "dvc.cli", "dvc.cli.parser", "dvc.repo", "dvc.commands.repro", "dvc.repo.reproduce",
           "dvc.repo.experiments", "dvc.commands.status", "networkx", "dvc.repo.index", "dvc.repo.graph",
           "dvc.repo.stage", "dvc.repo.plots", "dvc.repo.artifacts", "dvc.repo.datasets", "dvc.cachemgr",
           "dvc.data_cloud", "dvc.utils.strictyaml", "dvc_render", "dulwich.index", "dulwich.worktree",
           "dvc_data.hashfile.db.local", "dvc_data.hashfile.status", "fsspec.implementations.memory",
           "pydantic", "typer", "mathrl.flows.pipeline",
           "mathrl.tasks.prefect_server", "prefect.server.api.server", "prefect.main", "prefect.engine", "uvicorn",
           "uvicorn.main", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on", "aiosqlite", "mlflow",
           "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
           "mlflow.store.tracking.sqlalchemy_workspace_store", "mlflow.system_metrics.system_metrics_monitor",
           "alembic.command", "pyarrow.parquet", "transformers.models.qwen2.modeling_qwen2",
           "mathrl.tracking.mirror", "mathrl.stages.curate", "mathrl.stages.sft", "mathrl.stages.difficulty",
           "mathrl.stages.mix", "mathrl.stages.rl", "mathrl.stages.evaluate", "mathrl.stages.register",
           "mathrl.cli.run")  # fmt: skip
# The upper floors, which no other room imports: they import Prefect, look at a project, and some are replaced by tests.
NOT_KEPT = ("mathrl.api", "mathrl.cli", "mathrl.flows", "mathrl.tasks", "mathrl.stages")
ROOT = Path(__file__).parents[1]
# Modules in C alone: json, signal and socket take twice the time of the rest.
CLIENT = """#!{python} -IS
import _signal, _socket, marshal, os, sys
words = {first!r} + sys.argv[1:]
kind, program, *_ = [*words, "", ""]
if not (kind == "-m" and (program in {modules!r} or program.startswith({rooms!r}))) and not (
    kind == "-c" and any(text in program for text in {own!r})
) or os.path.exists(os.environ.get("USUAL_PYTHON_IF", "")):
    os.execv({python!r}, [{python!r}, *words])
def pass_on(number, frame):
    try:
        server.sendall(bytes([number]))
    except OSError:
        pass  # the program has ended
server = _socket.socket(_socket.AF_UNIX)
numbers = [_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP]
_signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)  # a signal's byte comes after the request
for number in numbers:
    _signal.signal(number, pass_on)
server.connect({address!r})
request = marshal.dumps(dict(words=words, folder=os.getcwd(), environment=dict(os.environ)))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)
server.sendmsg([len(request).to_bytes(4, "big")], [rights])
server.sendall(request)
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, numbers)
reply = server.recv(4)
status = int.from_bytes(reply, "big", signed=True) if reply else 1  # the server has ended
if status < 0:
    if status != -_signal.SIGKILL:
        _signal.signal(-status, _signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Restored:
    """Finds the modules that were imported before the fork: those of Prefect, which reads the fork's settings first,
    and those of mathrl, if the fork is to have the same code.
    """

    def __init__(self) -> None:
        self.modules = removed("prefect") | {
            name: module for name, module in removed("mathrl").items() if not name.startswith(NOT_KEPT)
        }
        for name in MODULES:  # which are run as programs
            if "." in name:
                self.modules.pop(name, None)
        self.own = {
            name: (Path(module.__file__).relative_to(ROOT), Path(module.__file__).read_bytes())
            for name, module in self.modules.items()
            if name.split(".")[0] == "mathrl" and module.__file__ and Path(module.__file__).is_relative_to(ROOT)
        }
        for name in self.own:
            for value in vars(self.modules[name]).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
        self.specs = {name: module.__spec__ for name, module in self.modules.items()}
        self.refreshed = False

    def use_code_of(self, folder: Path) -> None:
        """Find mathrl's modules as if they had been imported from the folder; none of them if a file differs there."""
        if folder == ROOT:
            return
        same = all((folder / file).exists() and (folder / file).read_bytes() == own for file, own in self.own.values())
        for name in self.own:
            if same:
                move(self.modules[name], folder)
            else:
                del self.modules[name]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        spec = ModuleSpec(name, self)  # type: ignore[arg-type]
        spec.submodule_search_locations = getattr(self.modules[name], "__path__", None)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.own:
            return
        module.__spec__ = self.specs[module.__name__]  # which knows the module's files
        if not self.refreshed:
            self.refreshed = True
            importlib.import_module("prefect.context").refresh_global_settings_context()
            importlib.import_module("prefect.logging.configuration").setup_logging(incremental=False)

    def get_code(self, name: str) -> Any:
        """Of a module that is run as a program."""
        return self.specs[name].loader.get_code(name)  # type: ignore[union-attr]


def move(module: ModuleType, folder: Path) -> None:
    """Let what the module knows of its own place name the folder."""
    names = vars(module)
    if "__path__" in names:
        names["__path__"] = [path.replace(str(ROOT), str(folder), 1) for path in names["__path__"]]
    for name, value in names.items():
        if isinstance(value, str) and (value == str(ROOT) or value.startswith(f"{ROOT}{os.sep}")):
            names[name] = value.replace(str(ROOT), str(folder), 1)
        elif isinstance(value, Path) and value.is_relative_to(ROOT):
            names[name] = folder / value.relative_to(ROOT)


def forget_loggers() -> None:
    """Take Prefect's handlers away, which would repeat what DVC logs."""
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "prefect"]:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)


def removed(package: str) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}


def complete_models() -> None:
    """Build Pydantic's models that wait for their first use: it looks for their modules, which a fork has not yet."""
    waiting = importlib.import_module("pydantic").BaseModel.__subclasses__()
    while waiting:
        model = waiting.pop()
        waiting += model.__subclasses__()
        if model.__module__.startswith("prefect.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)


def preload(folder: Path) -> None:
    gc.disable()
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    for name in IMPORTS:
        importlib.import_module(name)
    complete_models()
    importlib.import_module("mathrl.core.mirroring").UPLOAD_SECONDS = 900.0  # on a busy machine its start takes long
    atexit.unregister(importlib.import_module("torch._dynamo.utils").dump_compile_times)  # of each fork, at its end
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's libraries, which each fork would take down
    typing._cleanups.clear()  # type: ignore[attr-defined]  # typing's caches, which nanobind empties at the end
    for own in ("flows", "tasks", "tests"):  # a checkout has its own
        removed(own)
    forget_loggers()
    sys.meta_path.insert(0, Restored())  # type: ignore[arg-type]
    gc.freeze()
    gc.enable()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    others = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # of Arrow, which a fork starts again
    assert not others, f"a process with threads must not fork: {others}"


def received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A client's request and its three streams; EOFError if the client has been killed."""
    client.settimeout(60)
    header, streams, _, _ = socket.recv_fds(client, 4, 3)
    try:
        text = b""
        while not header or len(text) < int.from_bytes(header, "big"):
            if not (part := client.recv(1 << 20)):
                raise EOFError
            text += part
        request: dict[str, Any] = marshal.loads(text)
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise
    client.settimeout(None)
    return request, streams


def serve(listener: socket.socket, session: int) -> dict[str, Any]:
    """Fork for each request; returns in the forked processes, with the request."""
    selector = selectors.DefaultSelector()
    selector.register(os.pidfd_open(session), selectors.EVENT_READ, None)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client = listener.accept()[0]
                try:
                    request, streams = received(client)
                except (EOFError, OSError, ValueError, TypeError):
                    client.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, 0)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return request
                with suppress(OSError):  # the fork has begun its program
                    os.setpgid(pid, pid)
                for stream in streams:
                    os.close(stream)
                selector.register(client, selectors.EVENT_READ, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
            elif selector.get_map().get(key.fd) is not key:
                continue  # its program ended in this very moment
            elif isinstance(key.fileobj, socket.socket):
                try:
                    numbers = key.fileobj.recv(16)
                except ConnectionError:
                    numbers = b""
                for number in numbers or [signal.SIGKILL]:  # the client has been killed
                    os.killpg(key.data, number)
                if not numbers:
                    selector.unregister(key.fileobj)
            elif key.data is None:
                sys.exit("the session of tests has ended")
            else:
                pid, client = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if client in selector.get_map():
                    selector.unregister(client)
                    with suppress(ConnectionError):  # the client has been killed
                        client.sendall(status.to_bytes(4, "big", signed=True))
                client.close()
                selector.unregister(key.fileobj)
                os.close(key.fd)


def main(folder: Path, session: int) -> dict[str, Any]:
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    preload(folder)
    for name, first in (("dvc", ["-m", "dvc"]), ("python", [])):
        aside = folder / f".{name}"
        aside.write_text(
            CLIENT.format(python=sys.executable, first=first, modules=MODULES, rooms=ROOMS, own=OWN, address=address)
        )
        aside.chmod(0o755)
        aside.rename(folder / name)
    return serve(listener, session)


def become(request: dict[str, Any], executable: str) -> list[str]:
    """The request's folder, environment and arguments; the words that say what to run."""
    os.chdir(request["folder"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [path for path in sys.path[1:] if path not in own]
    sys.path[:] = [request["folder"], *filter(None, given), *installed]
    restored = next(finder for finder in sys.meta_path if isinstance(finder, Restored))
    restored.use_code_of(next((Path(path) for path in sys.path if Path(path, "mathrl").is_dir()), ROOT))
    sys.executable = executable
    words: list[str] = request["words"]
    sys.argv = [words[0] if words[0] == "-c" else words[1], *words[2:]]
    globals().pop("__file__")  # a program that is given by -c has none
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(write_through=True)  # type: ignore[union-attr]
    return words[:2]


def leave(error: BaseException | None) -> None:
    """End as Python does after the program's last line, but do not take down the modules that were imported before."""
    status = 1 if error else 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            output.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    own = Path(sys.argv[1])
    kind, program = become(main(own, int(sys.argv[2])), str(own / "python"))
    try:
        if kind == "-c":
            exec(program)
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except BaseException as error:
        leave(error)
    leave(None)
