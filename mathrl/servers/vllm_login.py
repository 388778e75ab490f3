"""The login of a vLLM server that other machines can reach: every request needs the key.

vLLM's own `--api-key` leaves the endpoints open through which weights are replaced.
"""

import secrets

from mathrl.core.environment import Variable
from mathrl.core.request_origin import Application, Message, Receive, Send

KEY = Variable.SERVE_KEY  # set for `mathrl serve` and for the runs that sample from it


def login_headers() -> dict[str, str]:
    """The headers of each request; empty without a key."""
    key = KEY.get()
    return {"authorization": f"Bearer {key}"} if key else {}


class Login:
    """ASGI middleware: answers 401 to a request without the key, /health included."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.wanted = login_headers()["authorization"].encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            login = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(login, self.wanted):
                if scope["type"] == "http":
                    start = {"type": "http.response.start", "status": 401, "headers": []}
                    await send(start)
                    await send({"type": "http.response.body", "body": f"no {KEY}, or another".encode()})
                return
        await self.app(scope, receive, send)


PATH = "/mathrl/weights"  # GET: state; POST: the fields of `SentWeights`, which replaces the weights
# vLLM's own, by which weights come that are no files.
INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH = "/finish_weight_update"
GENERATION, WEIGHTS = "x-mathrl-generation", "x-mathrl-weights"  # headers of answers; the second of requests too
HAS_OTHERS, NOT_AS_SENT, FAILED = 412, 409, 500
ADAPTER = "mathrl-adapter"  # the name of the model with an adapter, in requests
