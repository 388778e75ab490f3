"""A server as `mathrl serve` starts one, with the torch engine in vLLM's place, so that it starts in seconds.

python -m tests.faults.torch_server MODEL_FOLDER PORT

The middleware is that of `mathrl serve`; tokens, log-probs and weights are real ones. Its process id stands in the
file PORT.pid beside the model's folder. With $WRONG_CLOCK the process's clock jumps by up to that many seconds.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from mathrl.core.guard import die_with_parent
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.weights import copy_weights, folder_digest, folder_weights
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.servers.served_weights import ServedWeights
from tests.faults.killed_stage import jumping_clock


class TorchServer:
    """The model and the endpoints; `engine_client` of the app, as far as the middleware uses it."""

    def __init__(self, folder: Path) -> None:
        model = load_model(folder, Model(), "cpu")
        self.engine = TorchEngine(model, load_tokenizer(folder), Rollout())
        self.lock = asyncio.Lock()
        paths = {"/health": self.health, "/v1/models": self.models, "/metrics": self.health}
        routes = [Route(path, endpoint) for path, endpoint in paths.items()]
        self.app = Starlette(routes=[*routes, Route("/v1/completions", self.completions, methods=["POST"])])
        self.app.add_middleware(ServedWeights)
        self.app.state.engine_client = self

    async def collective_rpc(self, method: str, args: tuple[str]) -> list[str]:
        folder = Path(args[0])
        if not any(folder.glob("*.safetensors")):
            raise Exception(f"{folder}: this server finds no *.safetensors in it")
        async with self.lock:
            copy_weights(self.engine.model, folder_weights(folder))
            return [folder_digest(folder)]

    async def reset_prefix_cache(self, _: bool) -> bool:
        return True

    async def update_weight_version(self, _: str) -> None:
        return None

    async def health(self, _: Request) -> JSONResponse:
        return JSONResponse({})

    async def models(self, _: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "model"}]})

    async def completions(self, request: Request) -> StreamingResponse:
        body = await request.json()
        return StreamingResponse(self.pieces(body), media_type="text/event-stream")

    async def pieces(self, body: dict[str, Any]) -> AsyncIterator[str]:
        sampling = Sampling(body["n"], body["temperature"], body["max_tokens"], body["top_p"])
        async with self.lock:
            (completions,) = await asyncio.to_thread(self.engine.generate, [body["prompt"]], sampling, body["seed"])
        for index, completion in enumerate(completions):
            choice = {
                "index": index,
                "token_ids": completion.tokens.tolist(),
                "logprobs": {"token_logprobs": completion.logprobs.tolist()},
                "finish_reason": completion.finish_reason,
            }
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        yield "data: [DONE]\n\n"


if __name__ == "__main__":
    die_with_parent()
    torch.set_num_threads(1)
    if os.environ.get("WRONG_CLOCK"):
        jumping_clock(float(os.environ["WRONG_CLOCK"]))
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    server = TorchServer(folder)
    folder.with_name(f"{port}.pid").write_text(str(os.getpid()))
    uvicorn.run(server.app, host="127.0.0.1", port=port, log_level="warning")
