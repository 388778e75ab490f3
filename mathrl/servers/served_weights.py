"""What a vLLM server says about itself in every answer: its generation, and the digest of its weights.

A request names the weights that it wants. A server that has others, because it was restarted or missed a sync, refuses
it with 412 before a token is sampled. Weights come as files, or by vLLM's own endpoints (NCCL, CUDA IPC): between the
first of these and the digest that confirms what came, nothing is sampled and requests wait.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from mathrl.core.request_origin import Message, Receive, Send
from mathrl.models.weights import adapter_digest
from mathrl.servers.protocol import (
    ADAPTER,
    FAILED,
    FINISH,
    GENERATION,
    HAS_OTHERS,
    NOT_AS_SENT,
    PATH,
    START,
    UPDATE,
    WEIGHTS,
)


class ServedWeights:
    """ASGI middleware of `mathrl serve`.

    `generation` is a random number that each server process draws at its start, so that it needs neither a clock nor a
    file. `digest` is that of the weights that were sent last, empty before the first sync and while one is read; `base`
    that of the model's own weights, to which an adapter may have been added. `settled` is clear while weights come by
    vLLM's endpoints.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.generation, self.digest, self.base = secrets.randbits(32), "", ""
        self.reading = asyncio.Lock()  # held while weights are read
        self.settled = asyncio.Event()
        self.settled.set()
        self.gpus: list[str] | None = None  # of its workers, once they were asked

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        vllm = scope["app"].state
        if scope["path"] == PATH:
            status, body = 200, self.state()
            if scope["method"] == "POST":
                status, body = await self._replace(vllm, await _json(receive))
            await _answer(send, status, body | {"adapters": most_adapter_rank(vllm), **await self._transfer(vllm)})
            return
        if scope["path"] in (START, UPDATE, FINISH):
            await self._receive_step(vllm.engine_client, scope, receive, send)
            return
        wanted = dict(scope["headers"]).get(WEIGHTS.encode())
        if wanted is not None:
            await self.settled.wait()
            async with self.reading:
                has_them = bool(self.digest) and self.digest in wanted.decode().split(",")
            if not has_them:
                await _answer(send, HAS_OTHERS, self.state())
                return
        headers = [(GENERATION.encode(), str(self.generation).encode()), (WEIGHTS.encode(), self.digest.encode())]

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self.app(scope, receive, send_marked)

    def state(self) -> dict[str, Any]:
        """{"generation": 3181744263, "weights": "9f86d081884c7d65"}"""
        return {"generation": self.generation, "weights": self.digest}

    async def _transfer(self, vllm: Any) -> dict[str, Any]:
        """How weights can come besides files, and the GPU of each worker: {"transfer": "nccl", "gpus": ["GPU-5f…"]}"""
        config = getattr(getattr(vllm.engine_client, "vllm_config", None), "weight_transfer_config", None)
        if config is None:
            return {"transfer": "", "gpus": []}
        if self.gpus is None:
            self.gpus = list(await vllm.engine_client.collective_rpc("gpu_name"))
        return {"transfer": config.backend.removeprefix("mathrl_"), "gpus": self.gpus}

    async def _receive_step(self, engine: Any, scope: Message, receive: Receive, send: Send) -> None:
        """One of vLLM's endpoints by which weights come; requests in flight wait, and go on with the new weights."""
        statuses: list[int] = []

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            if scope["path"] == START:
                async with self.reading:
                    self.settled.clear()
                    self.digest = self.base = ""
                    await engine.pause_generation(mode="keep", clear_cache=False)
                    await engine.collective_rpc("end_broken_update")
            await self.app(scope, receive, note)
        finally:
            if statuses != [200]:
                await self._break_off(engine)

    async def _digests(self, engine: Any, folder: str, receiving: bool) -> list[str]:
        """What each worker has read from the folder, or, without one, received."""
        if folder:
            return list(await engine.collective_rpc("read_weights", args=(folder,)))
        if not receiving:
            raise RuntimeError("no weights were received, or their update broke off")
        return list(await engine.collective_rpc("received_digest"))

    async def _break_off(self, engine: Any) -> None:
        """No update goes on; requests that were in flight end as aborted, and the server has no weights to name."""
        try:
            await engine.pause_generation(mode="abort", clear_cache=False)
            await engine.resume_generation()
        finally:
            self.settled.set()

    async def _replace(self, vllm: Any, wanted: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Have vLLM read weights, or an adapter, and compare what it has read, or received, with what was sent."""
        async with self.reading:
            if self.digest == wanted["digest"]:  # another rank was faster
                return 200, self.state()
            self.digest, receiving = "", not self.settled.is_set()
            status, error = 200, ""
            try:
                if receiving and wanted["folder"]:  # the trainer that sent others is gone
                    receiving = False
                    await self._break_off(vllm.engine_client)
                await self._read(vllm, wanted, receiving)
            except Differs as differs:
                status, error = NOT_AS_SENT, str(differs)
            except Exception as raised:  # vLLM raises what a worker raised as Exception itself
                status, error = FAILED, str(raised)
            if error and receiving:
                await self._break_off(vllm.engine_client)
            elif not error:
                self.digest = wanted["digest"]
            if receiving and not error:
                await vllm.engine_client.resume_generation()
                self.settled.set()
        return status, self.state() | ({"error": error} if error else {})

    async def _read(self, vllm: Any, wanted: dict[str, Any], receiving: bool) -> None:
        engine, base = vllm.engine_client, wanted.get("base") or wanted
        if self.base != base["digest"]:
            self.base = ""
            for read in await self._digests(engine, base["folder"], receiving):
                check_digest(base, read)
            self.base = base["digest"]
        if wanted.get("base"):
            check_digest(wanted, await asyncio.to_thread(adapter_digest, base["digest"], wanted["folder"]))
            await load_adapter(vllm.openai_serving_models, wanted["folder"])
        if not await engine.reset_prefix_cache(True):
            raise RuntimeError("vLLM could not drop its prefix cache")
        await engine.update_weight_version(wanted["digest"])


class Differs(Exception):
    """What a server has read is not what was sent."""


def check_digest(wanted: dict[str, Any], read: str) -> None:
    """Raises Differs: the digest of what was read is another one."""
    if read != wanted["digest"]:
        what = wanted["folder"] or "what was received"
        raise Differs(f"the digest of {what} is {read} here, but {wanted['digest']} was sent")


def most_adapter_rank(vllm: Any) -> int:
    """The largest rank of an adapter that the server takes, 0 if it takes none."""
    lora = getattr(getattr(vllm.engine_client, "vllm_config", None), "lora_config", None)
    return int(lora.max_lora_rank) if lora else 0


async def load_adapter(models: Any, folder: str) -> None:
    """Have vLLM use the adapter in the folder in place of the one before it.

    Raises:
        RuntimeError: vLLM cannot use it.
    """
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest  # in vLLM's server alone

    request = LoadLoRAAdapterRequest(lora_name=ADAPTER, lora_path=folder, load_inplace=True)
    answer = await models.load_lora_adapter(request)
    if not isinstance(answer, str):
        raise RuntimeError(f"vLLM cannot use the adapter {folder}: {answer.error.message}")


async def _json(receive: Receive) -> dict[str, str]:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    value: dict[str, str] = json.loads(body)
    return value


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (GENERATION.encode(), str(body["generation"]).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
