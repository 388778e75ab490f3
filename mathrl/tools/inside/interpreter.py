"""The interpreter of one session: the only process that runs a response's code.

Everything it says to its supervisor can be forged by that code, and is worth no more: the code can misstate how its
own call ended, and nothing else.
"""

import ast
import builtins
import linecache
import os
import random
import resource
import socket
import sys
import traceback
from types import CodeType, TracebackType
from typing import Any

from mathrl.tools.inside.kernel import PR_SET_DUMPABLE, filter_calls, prctl
from mathrl.tools.inside.messages import ERROR, MB, OK, receive, send

HOME = "/tmp"
MOST_FILES = 1 << 16  # a file descriptor above it: a supervisor has one per session that was open before it


def interpret(channel: socket.socket, output: int, limits: dict[str, Any], program: bytes) -> None:
    """Confine this process, then run each code that arrives. Ends with the process.

    Args:
        channel: to the supervisor; each message is a code, each answer `OK` or `ERROR`.
        output: the file descriptor of stdout and stderr.
        limits: of `Bubblewrap`, with `address_space` in bytes.
        program: the seccomp filter.
    """
    os.setsid()
    _redirect(channel, output)
    _limit(limits)
    names = _fresh_names()
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    prctl(PR_SET_DUMPABLE, 1)  # its supervisor reads its memory's size
    filter_calls(program)
    number = 0
    while (code := receive(channel)) is not None:
        number += 1
        succeeded = _run(code.decode(), f"<call {number}>", names)
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        send(channel, OK if succeeded else ERROR)


def _redirect(channel: socket.socket, output: int) -> None:
    """Only four files stay open: /dev/null, the output twice, and the channel."""
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, MOST_FILES)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)


def _text_stream(descriptor: int) -> Any:
    return os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _limit(limits: dict[str, Any]) -> None:
    """Limits that the kernel holds, of this process and each of its children."""
    fixed = {
        resource.RLIMIT_NPROC: limits["processes"] + 1,  # the supervisor counts too
        resource.RLIMIT_FSIZE: limits["file_mb"] * MB,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_AS: limits["address_space"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_RTPRIO: 0,
    }
    for kind, value in fixed.items():
        resource.setrlimit(kind, (value, value))


def _fresh_names() -> dict[str, Any]:
    """The global names of the first call, as those of a program's main module."""
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    os.environ.clear()
    os.environ.update({"HOME": HOME, "LANG": "C.UTF-8"})
    sys.argv = [""]
    return main.__dict__


def _run(code: str, name: str, names: dict[str, Any]) -> bool:
    """Run the code as a notebook would, with its last expression's value printed; whether it raised nothing."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        body, last = _compile(code, name)
        exec(body, names)
        if last is not None:
            value = eval(last, names)
            if value is not None:
                print(repr(value))
        return True
    except SystemExit as error:
        _say(f"SystemExit: {error.code}: the code ended the call itself.\n")
    except BaseException as error:
        _say(_explanation(error))
    return False


def _compile(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval")  # type: ignore[attr-defined]
    return compile(tree, name, "exec"), last


def _explanation(error: BaseException) -> str:
    """The traceback from the code's own first frame on."""
    try:
        return "".join(traceback.format_exception(type(error), error, _code_frames(error.__traceback__), limit=-8))
    except BaseException as second:
        return f"{type(error).__name__}: its text cannot be made ({type(second).__name__})\n"


def _code_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<call "):
        trace = trace.tb_next
    return trace


def _say(text: str) -> None:
    """Write to the output whatever the code has made of sys.stderr."""
    _flush(sys.stdout)
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return  # the code closed its output: nobody is left to tell


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except BaseException:
        return  # the code replaced or closed it
