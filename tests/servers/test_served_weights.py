"""The middleware of `mathrl serve` in a real Starlette app; its engine reads folders as vLLM's worker does.

In real vLLM servers: tests/engines/test_vllm_servers.py.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mathrl.models.weights import folder_digest, write_buckets
from mathrl.servers.protocol import FINISH, GENERATION, PATH, START, UPDATE, WEIGHTS
from mathrl.servers.served_weights import ServedWeights


class Engine:
    """What the middleware uses of vLLM's engine; `reading` is set while it reads, until `go` is.

    `received` is what the workers say of the weights that came by vLLM's endpoints, and `calls` what was asked of it.
    """

    def __init__(self) -> None:
        self.empties, self.version = True, ""
        self.received, self.calls = "", list[str]()
        self.reading, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append(f"pause {mode}")
        assert not clear_cache

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def collective_rpc(self, method: str, args: tuple[str] = ("",)) -> list[str]:
        self.calls.append(method)
        if method == "end_broken_update":
            return []
        if method == "received_digest":
            return [self.received] * 2
        assert method == "read_weights"
        self.reading.set()
        await self.go.wait()
        if not list(Path(args[0]).glob("*.safetensors")):
            raise Exception(f"{args[0]}: this server finds no *.safetensors in it")
        return [folder_digest(Path(args[0]))] * 2  # two tensor-parallel ranks

    async def reset_prefix_cache(self, running: bool) -> bool:
        assert running
        return self.empties

    async def update_weight_version(self, version: str) -> None:
        self.version = version


class Served:
    """The app, its engine, how many completions it was asked for, and a client."""

    def __init__(self) -> None:
        self.asked, self.engine = 0, Engine()
        self.broken = False  # whether vLLM's endpoint for an update answers 500
        routes = {"/v1/completions": self.complete, START: self.step, UPDATE: self.step, FINISH: self.step}
        self.app = Starlette(routes=[Route(path, endpoint, methods=["POST"]) for path, endpoint in routes.items()])
        self.app.add_middleware(ServedWeights)
        self.app.state.engine_client = self.engine
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://server")

    async def complete(self, _: Any) -> PlainTextResponse:
        self.asked += 1
        return PlainTextResponse("tokens")

    async def step(self, request: Any) -> PlainTextResponse:
        self.engine.calls.append(request.url.path)
        return PlainTextResponse("", 500 if self.broken and request.url.path == UPDATE else 200)

    async def receive(self, digest: str, *paths: str) -> httpx.Response:
        """vLLM's endpoints in turn, and then the digest of what was sent."""
        for path in paths:
            await self.client.post(path)
        return await self.client.post(PATH, json={"folder": "", "digest": digest})

    async def send(self, folder: Path, digest: str) -> httpx.Response:
        return await self.client.post(PATH, json={"folder": str(folder), "digest": digest})

    async def ask(self, *digests: str) -> httpx.Response:
        return await self.client.post("/v1/completions", headers={WEIGHTS: ",".join(digests)} if digests else {})


@pytest.fixture
def sent(tmp_path: Path) -> Callable[[int], tuple[Path, str]]:
    def make(number: int) -> tuple[Path, str]:
        folder = tmp_path / str(number)
        return folder, write_buckets([("w", torch.full((3,), float(number)))], folder, torch.float32, 1)

    return make


def test_only_requests_for_its_weights_reach_the_server(sent: Any) -> None:
    async def scenario() -> None:
        served, (one, two) = Served(), (sent(1), sent(2))
        before = await served.ask(one[1])
        assert before.status_code == 412 and before.json()["weights"] == "" and served.asked == 0
        generation = before.json()["generation"]
        taken = await served.send(*one)
        state = {"generation": generation, "weights": one[1], "adapters": 0, "transfer": "", "gpus": []}
        assert (taken.status_code, taken.json()) == (200, state)
        assert served.engine.version == one[1]
        well = await served.ask(one[1])
        assert (well.status_code, well.text, served.asked) == (200, "tokens", 1)
        assert (well.headers[GENERATION], well.headers[WEIGHTS]) == (str(generation), one[1])
        assert (await served.send(*two)).status_code == 200
        assert (await served.ask(one[1])).status_code == 412
        assert (await served.ask(two[1], one[1])).status_code == (await served.ask()).status_code == 200
        assert served.asked == 3
        # Another process of the same server has another number, and no weights that were sent.
        state = (await Served().client.get(PATH)).json()
        assert state["weights"] == "" and state["generation"] != generation

    asyncio.run(scenario())


def test_weights_that_differ_from_what_was_sent_are_refused_and_none_are_served(sent: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        served, (one, two) = Served(), (sent(1), sent(2))
        await served.send(*one)
        torn = await served.send(one[0], two[1])
        assert torn.status_code == 409
        assert torn.json()["error"] == f"the digest of {one[0]} is {one[1]} here, but {two[1]} was sent"
        for digest in (one[1], two[1], "", ","):
            assert (await served.ask(digest)).status_code == 412
        unseen = await served.send(tmp_path / "elsewhere", two[1])
        assert unseen.status_code == 500 and "finds no *.safetensors" in unseen.json()["error"]
        served.engine.empties = False
        cached = await served.send(*two)
        assert cached.status_code == 500 and "prefix cache" in cached.json()["error"]
        assert (await served.ask(two[1])).status_code == 412 and served.asked == 0

    asyncio.run(scenario())


def test_a_request_that_comes_while_weights_are_read_waits_for_them(sent: Any) -> None:
    async def scenario() -> None:
        served, one = Served(), sent(1)
        served.engine.go.clear()
        sending = asyncio.create_task(served.send(*one))
        await served.engine.reading.wait()
        asking = asyncio.create_task(served.ask(one[1]))
        again = asyncio.create_task(served.send(*one))  # another rank, which sends the same
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asking.done() and (await served.client.get(PATH)).json()["weights"] == ""
        served.engine.reading.clear()
        served.engine.go.set()
        answers = await asyncio.gather(sending, asking, again)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert not served.engine.reading.is_set(), "the same weights were read twice"

    asyncio.run(scenario())


def test_weights_by_vllms_endpoints_are_served_once_their_digest_is_confirmed() -> None:
    async def scenario() -> None:
        served = Served()
        served.engine.received = "abc"
        await served.client.post(START)
        asking = asyncio.create_task(served.ask("abc"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asking.done() and (await served.client.get(PATH)).json()["weights"] == ""
        assert (await served.receive("abc", UPDATE, FINISH)).json()["weights"] == "abc"
        assert (await asking).status_code == 200 and served.engine.version == "abc"
        order = ["pause keep", "end_broken_update", START, UPDATE, FINISH, "received_digest", "resume"]
        assert served.engine.calls == order
        # The same weights again: they are counted again, since what came before them is gone.
        assert (await served.receive("abc", START, UPDATE, FINISH)).status_code == 200
        assert served.engine.calls == order * 2

    asyncio.run(scenario())


def test_an_update_that_breaks_off_or_differs_leaves_no_weights_and_ends_what_was_in_flight(sent: Any) -> None:
    async def scenario() -> None:
        served, (folder, digest) = Served(), sent(1)
        served.engine.received = "abc"
        differs = await served.receive("abd", START, UPDATE, FINISH)
        assert differs.status_code == 409
        assert differs.json()["error"] == "the digest of what was received is abc here, but abd was sent"
        assert served.engine.calls[-2:] == ["pause abort", "resume"]
        served.broken = True
        unfinished = await served.receive("abc", START, UPDATE)
        assert unfinished.status_code == 500 and "their update broke off" in unfinished.json()["error"]
        for wanted in ("abc", "abd", ""):
            assert (await served.ask(wanted)).status_code == 412
        # A trainer that died within an update: files from the next one, or an update of its own, take its place.
        await served.client.post(START)
        assert (await served.send(folder, digest)).status_code == (await served.ask(digest)).status_code == 200
        served.broken = False
        await served.client.post(START)
        assert (await served.receive("abc", START, UPDATE, FINISH)).status_code == 200
        assert (await served.ask(digest)).status_code == 412 and (await served.ask("abc")).status_code == 200

    asyncio.run(scenario())
