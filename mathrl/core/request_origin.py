"""Which requests a server of this machine answers: those of programs and of its own page, none of other web pages.

A page of the web can send requests to a port of this machine, and its host's name can be made to point here (DNS
rebinding). A browser names that page in `Origin` and that name in `Host`; programs send no `Origin`.
"""

import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from mathrl.core.paths import is_loopback

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def refusal(headers: Iterable[tuple[str, str]], origins: Collection[str] = ()) -> str:
    """Why a request with these headers is refused; empty where it is answered.

    Its Host must be a loopback name or the host of one of the `origins`. Its Origin, if it has one, must be this server
    under that Host, or one of the `origins`.

    >>> refusal([("Host", "127.0.0.1:4200")]), refusal([("Host", "a.b:80"), ("Origin", "http://a.b")], ["http://a.b"])
    ('', '')
    >>> refusal([("Host", "evil.example:4200")])
    "Host 'evil.example:4200' is not a name of this server"
    >>> refusal([("Host", "localhost:4200"), ("Origin", "http://localhost:3000")])
    "Origin 'http://localhost:3000' is not a page of this server"
    """
    lower = [(name.lower(), value.strip().lower()) for name, value in headers]
    hosts = [value for name, value in lower if name == "host"]
    host = ", ".join(hosts)
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if len(hosts) != 1 or not (is_loopback(name) or name in {urllib.parse.urlsplit(one).hostname for one in origins}):
        return f"Host {host!r} is not a name of this server"
    allowed = {f"http://{host}", f"https://{host}", *origins}
    for key, value in lower:
        if key == "origin" and value not in allowed:
            return f"Origin {value!r} is not a page of this server"
    return ""


class OwnPages:
    """WSGI middleware: answers 403 to what `refusal` refuses, before the application sees it."""

    def __init__(self, app: "WSGIApplication") -> None:
        self.app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        headers = [(name, environ[f"HTTP_{name}"]) for name in ("HOST", "ORIGIN") if f"HTTP_{name}" in environ]
        if reason := refusal(headers):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [reason.encode()]
        return self.app(environ, start_response)


class OwnRequests:
    """ASGI middleware: answers 403 to what `refusal` refuses, before the application sees it."""

    def __init__(self, app: Application, origins: Collection[str] = ()) -> None:
        self.app, self.origins = app, origins

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
            reason = refusal(headers, self.origins)
            if reason and scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the answer is 403
                return
            if reason:
                plain = [(b"content-type", b"text/plain; charset=utf-8")]
                await send({"type": "http.response.start", "status": 403, "headers": plain})
                await send({"type": "http.response.body", "body": reason.encode()})
                return
        await self.app(scope, receive, send)
