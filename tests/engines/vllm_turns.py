"""Responses in turns with an engine of vLLM, in vllm_rl.py's process or with servers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mathrl.models.load import load_model
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.rollout import Bubblewrap, Rollout, Turns
from mathrl.rollout.engine import RolloutEngine, Sampling
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.turns import TurnSampler, wave_seed
from tests.engines.tiny_rl import MODEL
from tests.rollout.calculator import Calculator, Equations

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(5, 40)), [12]]
SAMPLING = Sampling(6, 1.0, 60)
STOP = ("=", "a", "7", "e")  # a server takes four at most


def measured(engine: RolloutEngine, tokenizer: Any, network: Any) -> dict[str, Any]:
    """How many calls there were, whether each turn is a plain call's, and the largest gap to the model's log-probs."""
    sampler = TurnSampler(engine, tokenizer, Calculator(), Turns(max_calls=1))
    sampler.format = Equations(*STOP)
    groups = sampler.generate(PROMPTS, SAMPLING, 3)
    flat = [(prompt, completion) for prompt, group in zip(PROMPTS, groups, strict=True) for completion in group]
    same = []
    plain = [c for group in engine.generate(PROMPTS, replace(SAMPLING, stop=STOP), 3) for c in group]
    for turn in (0, 1, 2):  # the second call is refused, and what follows it stops no more
        if turn:
            flat = [pair for pair in flat if len(pair[1].calls) >= turn and pair[1].calls[turn - 1].end < 60]
            prefixes = [[*prompt, *c.tokens[: c.calls[turn - 1].end].tolist()] for prompt, c in flat]
            limits = tuple(60 - c.calls[turn - 1].end for _, c in flat)
            sampling = Sampling(1, 1.0, max(limits), stop=STOP if turn < 2 else (), limits=limits)
            plain = [group[0] for group in engine.generate(prefixes, sampling, wave_seed(3, 0, turn, turn == 2))]
        for (_, completion), expected in zip(flat, plain, strict=True):
            start = completion.calls[turn - 1].end if turn else 0
            part = slice(start, start + len(expected.tokens))
            same.append(completion.tokens[part].tolist() == expected.tokens.tolist())
            same.append(bool((abs(completion.logprobs[part] - expected.logprobs) < 1e-4).all()))
    packed = [
        Group(prompt, [c.tokens for c in group], [c.sampled_mask for c in group])
        for prompt, group in zip(PROMPTS, groups, strict=True)
    ]
    with torch.no_grad():
        expected_N, _ = response_logprobs(network, packed)
    sampled_N = torch.cat([torch.from_numpy(c.logprobs[c.sampled_mask]) for group in groups for c in group])
    calls = [call for group in groups for c in group for call in c.calls]
    return {
        "calls": len(calls),
        "refused": sum(call.status == "limit" for call in calls),
        "same": sum(same) / len(same),
        "gap": float((expected_N - sampled_N).abs().max()),
    }


def turns_in_process(folder: Path) -> dict[str, Any]:
    """The same of an engine that is opened in this process."""
    rollout = Rollout(engine="vllm", max_sequences=32, tool=Bubblewrap())
    engine, tokenizer = open_engine(folder, MODEL, rollout, "cpu")
    return measured(engine, tokenizer, load_model(folder, MODEL, "cpu"))
