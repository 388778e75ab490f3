"""Messages between the pool, a session's supervisor and its interpreter: four bytes of length, then the bytes."""

import socket
import struct

LENGTH = struct.Struct("!I")
READY = b"ready"
REQUEST = struct.Struct("!d")  # a call: seconds of wall time, followed by the code
# An answer: how the call ended, the interpreter's exit status (or minus its signal), the bytes of output that follow
# and come from its beginning, the bytes that were left out behind them.
ANSWER = struct.Struct("!ciQQ")
# How a call ended: by itself, by an exception, at a limit, or with the interpreter.
OK, ERROR, CPU, WALL, MEMORY, EXITED = b"o", b"e", b"c", b"w", b"m", b"x"
MB = 1 << 20
LONGEST = 16 << 20


def send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(LENGTH.pack(len(message)) + message)


def receive(channel: socket.socket) -> bytes | None:
    """The next message, or None when the other side has closed.

    Raises:
        ValueError: the message is longer than any that is ever sent.
        TimeoutError: the socket's time-out passed.
    """
    header = _exactly(channel, LENGTH.size)
    if header is None:
        return None
    (length,) = LENGTH.unpack(header)
    if length > LONGEST:
        raise ValueError(f"a message of {length} bytes; the longest allowed has {LONGEST}")
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
