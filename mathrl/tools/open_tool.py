"""Open the tool that parameters describe: bubblewrap here, or a server that speaks SandboxFusion's `run_code`.

A server gets one request per call. `run_code` keeps nothing between requests, so each request repeats the session's
earlier calls, with their output dropped, before it runs the new one. Nothing of a reply is trusted: its size, its time
and its form are checked.

Source: https://github.com/bytedance/SandboxFusion, RunCodeRequest and RunCodeResponse of sandbox/server/sandbox_api.py.
"""

import asyncio
import json
import secrets
import threading
import time
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ValidationError

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError, without_logins
from mathrl.params.rollout import Bubblewrap, Http, Tools
from mathrl.tools.inside.messages import ERROR, EXITED, OK, WALL
from mathrl.tools.pool import Pool
from mathrl.tools.tool import Status, Tool, ToolOutput, clean, verdict


def open_tool(parameters: Tools) -> Tool:
    """The tool that the parameters describe; close it after use.

    Raises:
        UserError: the tool cannot run here (bubblewrap is missing or may not create namespaces; the server does not
            answer); the message says what to install or start.
        ValueError: `kind` is none.
    """
    if isinstance(parameters, Bubblewrap):
        return Pool(parameters)
    if isinstance(parameters, Http):
        return HttpTool(parameters)
    raise ValueError("kind is none: there is no tool to open")


GRACE_SECONDS = 10.0  # beyond run_timeout, for the server's queue and the way
LONGEST_REPLY = 16 << 20  # bytes
FIRST_PAUSE = 0.2  # seconds before the first retry; doubled for each further one
NOT_KEPT = "Nothing of this call is kept; the variables of earlier calls are."


class CommandResult(BaseModel):
    """What a server says of the program: its exit status and what it wrote."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeReply(BaseModel):
    """A reply to `run_code`, as far as it is used."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    run_result: CommandResult | None = None


class ServerFault(Exception):
    """The server gave no usable reply; the message says how."""


class HttpTool:
    """Sessions on a server; a `Tool`. One event loop in a thread of its own holds every request to its deadline.

    Raises:
        UserError: the server does not run a first program.
    """

    def __init__(self, parameters: Http) -> None:
        self.parameters = parameters
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox server", daemon=True)
        self._thread.start()
        self._client, self._turns = self._wait(self._open())
        self._closed = False
        try:
            reply = self.post("print(6 * 7)", parameters.wall_seconds)
            result = reply.run_result
            if reply.status != "Success" or result is None or (result.stdout or "").strip() != "42":
                raise ServerFault(f"it runs no Python ({reply.status}: {reply.message[:200]})")
        except ServerFault as error:
            self.close()
            raise UserError(
                f"tools.url {parameters.url}: {error}; start SandboxFusion there, or use kind: bubblewrap"
            ) from None

    def session(self) -> "HttpSession":
        """A new session; it costs nothing until its first call."""
        return HttpSession(self)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._closed = True
            self._wait(self._client.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def post(self, code: str, seconds: float) -> RunCodeReply:
        """Let the server run a program for at most `seconds`.

        Raises:
            TimeoutError: no complete reply came in time.
            ServerFault: there is no server, or no usable reply.
        """
        if self._loop.is_closed():
            raise ServerFault("it is closed")
        return self._wait(self._post(code, seconds))  # type: ignore[no-any-return]

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        count = self.parameters.requests
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        # trust_env: a proxy of the environment would see every program.
        client = httpx.AsyncClient(limits=limits, timeout=None, follow_redirects=False, trust_env=False)
        return client, asyncio.Semaphore(count)

    async def _post(self, code: str, seconds: float) -> RunCodeReply:
        body = {
            "code": code,
            "language": "python",
            "run_timeout": seconds,
            "memory_limit_MB": self.parameters.memory_mb,
        }
        async with self._turns:
            for attempt in range(self.parameters.retries + 1):
                try:
                    async with asyncio.timeout(seconds + GRACE_SECONDS):
                        return _parse(await self._exchange(body))
                except (httpx.HTTPError, httpx.InvalidURL, ServerFault) as error:
                    fault = ServerFault(without_logins(str(error)) or type(error).__name__)
                    if attempt == self.parameters.retries or isinstance(error, _FinalFault):
                        raise fault from None
                await asyncio.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    async def _exchange(self, body: dict[str, Any]) -> bytes:
        url = f"{self.parameters.url.rstrip('/')}/run_code"
        headers = {"Accept-Encoding": "identity"}
        if key := Variable.SANDBOX_KEY.get():
            headers["Authorization"] = f"Bearer {key}"
        async with self._client.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code >= 500:
                raise ServerFault(f"it replied with status {response.status_code}")
            if response.status_code != 200:
                raise _FinalFault(f"it replied with status {response.status_code}")
            reply = bytearray()
            async for part in response.aiter_raw():
                reply += part
                if len(reply) > LONGEST_REPLY:
                    raise _FinalFault(f"its reply is longer than {LONGEST_REPLY >> 20} MB")
            return bytes(reply)


class _FinalFault(ServerFault):
    """A fault that another attempt would meet again."""


class HttpSession:
    """A session on a server: the calls so far, and the time that they took."""

    def __init__(self, tool: HttpTool) -> None:
        self._tool = tool
        self._lock = threading.Lock()
        self._calls: list[str] = []
        self._seconds = 0.0
        self._closed = False

    def run(self, code: str) -> ToolOutput:
        """Run the code after the session's earlier calls and wait for its end, which the limits bound."""
        with self._lock:
            start = time.monotonic()
            code = code.encode("utf-8", "replace").decode()  # a lone surrogate would fail when it is repeated
            status, text = self._call(code)
            seconds = time.monotonic() - start
            if status in ("ok", "error"):
                self._calls.append(code)
                self._seconds = seconds
            return ToolOutput(text, status, seconds)

    def close(self) -> None:
        """Forget the calls."""
        self._closed = True

    def _call(self, code: str) -> tuple[Status, str]:
        if self._closed:
            return "unavailable", "The session is closed."
        limits = self._tool.parameters
        fence = secrets.token_hex(16)
        try:
            reply = self._tool.post(program([*self._calls, code], fence), limits.wall_seconds + self._seconds)
        except TimeoutError:
            return verdict(WALL, 0, ("", ""), limits, NOT_KEPT)
        except ServerFault as error:
            return "unavailable", clean(f"The sandbox server does not work: {error}")[: limits.output_characters]
        ending, number, output = _outcome(reply, fence)
        if ending is None:
            return "unavailable", clean(f"The sandbox server failed: {reply.message}")[: limits.output_characters]
        return verdict(ending, number, (clean(output), ""), limits, NOT_KEPT)


def _parse(reply: bytes) -> RunCodeReply:
    try:
        return RunCodeReply.model_validate(json.loads(reply))
    except (ValidationError, ValueError, RecursionError):
        raise _FinalFault("its reply is not one of run_code") from None


def _outcome(reply: RunCodeReply, fence: str) -> tuple[bytes | None, int, str]:
    """How the last call ended, the exit status, and what that call alone wrote.

    The program marks the beginning of its last call's output and, if it comes to its own end, that end. A missing end
    means that the code ended the interpreter, whatever the exit status.
    """
    result = reply.run_result
    if reply.status == "SandboxError" or result is None or result.status == "Error":
        return None, 0, ""
    written = (result.stdout or "").partition(START + fence + "\n")[2]
    output, ended, rest = written.partition(END + fence + " ")
    if result.status == "TimeLimitExceeded":
        return WALL, 0, output
    if not ended:
        return EXITED, result.return_code or 0, output + (result.stderr or "")
    return (OK if rest.startswith("ok") else ERROR), 0, output


# A Python program that runs a session's calls again and shows the output of the last alone.
START, END = "<<<start ", "<<<end "  # each is followed by the fence of its request

PROGRAM = """\
import ast, json, linecache, os, random, sys, traceback

def _mathrl_main(calls, fence):
    random.seed(0)
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    keep, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for number, code in enumerate(calls, 1):
        last = number == len(calls)
        if last:
            sys.stdout.flush()
            os.dup2(keep, 1)
            os.dup2(1, 2)
            os.write(1, ("START" + fence + "\\n").encode())
        file = f"<cell {number}>"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        how = "ok"
        try:
            tree = ast.parse(code, file)
            value = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, file, "exec"), names)
            if value is not None:
                result = eval(compile(ast.Expression(value), file, "eval"), names)
                if result is not None:
                    print(repr(result))
        except BaseException as error:
            how, trace = "error", error.__traceback__
            while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
                trace = trace.tb_next
            print("".join(traceback.format_exception(type(error), error, trace, limit=-8)), end="")
        sys.stdout.flush()
    os.write(1, ("END" + fence + " " + how + "\\n").encode())

_mathrl_main(json.loads(CALLS), FENCE)
"""


def program(calls: list[str], fence: str) -> str:
    """The program that runs `calls` one after another, as a notebook would its cells.

    Args:
        calls: codes, of which only the last one's output is shown.
        fence: a text that the calls cannot know beforehand; the output stands between two lines with it.
    """
    return (
        PROGRAM.replace("START", START)
        .replace("END", END)
        .replace("FENCE", repr(fence))
        .replace("CALLS", repr(json.dumps(calls)))  # last: the calls may contain any of these words
    )
