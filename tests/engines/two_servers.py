"""What tests with two vLLM servers share: the servers, a run of RL with them, and how far their samples are off."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mathrl.learners.distributed import Ranks
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.servers.serve import StartedServers
from tests.engines.tiny_rl import MODEL, STEPS, run_rl

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(5, 40)), [12], [13, 14]]
SAMPLING = Sampling(4, 0.8, 12)


@dataclass
class Two:
    """Two servers of one model folder, as a stage starts them."""

    folder: Path
    started: StartedServers

    def rollout(self, **servers: Any) -> Rollout:
        given = {"urls": tuple(self.started.urls), "timeout_seconds": 120.0, "wait_seconds": 400.0} | servers
        return Rollout(engine="vllm_server", max_sequences=32, servers=Servers(**given))

    def signal(self, number: int, kind: signal.Signals) -> int:
        """Signal a server and the engine that it started, and return its process's id."""
        process = int(json.loads(self.started.file.read_text())[number]["pid"])
        os.killpg(process, kind)
        return process


def train(two: Two, where: Path, params: Rl = STEPS, sender: Any = None) -> tuple[list[dict[str, float]], Any, Any]:
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)
    ahead = params.asynchronous is not None
    engine: Any = training_engine(network, two.folder, tokenizer, MODEL, two.rollout(), ahead)
    engine.sender = sender
    sampler = Sampler(engine, tokenizer, Prompt())
    return run_rl(network, sampler, params, Ranks(torch.device("cpu")), where), network, engine


def gloo_sender(folder: Path, **settings: Any) -> Any:
    from tests.engines.gloo_transfer import GlooSender  # vLLM, which may not be installed

    return GlooSender(folder, **settings)


def with_transfer(two: Two, folder: Path, **sender: Any) -> tuple[Any, Any]:
    """A network, and an engine that sends its weights by vLLM's transfer."""
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)
    engine: Any = training_engine(network, two.folder, tokenizer, MODEL, two.rollout(), False)
    engine.sender = gloo_sender(folder, **sender)
    return network, engine


def changed(network: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) / 20)


def largest_gap(network: Any, completions: Any) -> float:
    groups = [Group(prompt, [each.tokens for each in row]) for prompt, row in zip(PROMPTS, completions, strict=True)]
    with torch.no_grad():
        expected, _ = response_logprobs(network, groups, SAMPLING.temperature)
    sampled = torch.tensor([value for row in completions for each in row for value in each.logprobs])
    return float((expected - sampled).abs().max())


def within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
