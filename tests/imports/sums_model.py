"""A tiny model that has learned sums from examples of which half are wrong, for real runs of other trainers."""

import itertools
import random
from typing import Any

import torch

from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.run import FreshModel

SIZES = {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 4, "kv_heads": 2, "max_positions": 64}


def sums() -> list[tuple[str, str]]:
    return [(f"{first}+{second}=", str(first + second)) for first, second in itertools.product(range(10), repeat=2)]


def teach(network: torch.nn.Module, tokenizer: object, updates: int) -> None:
    """Next-token training on sums, a part of them with a wrong answer, so that RL has something left to do."""
    optimizer, chosen = torch.optim.AdamW(network.parameters(), lr=2e-3), random.Random(1)
    for _ in range(updates):
        rows = []
        for question, answer in chosen.sample(sums(), 32):
            shown = answer if chosen.random() < 0.5 else str(chosen.randrange(19))
            rows.append([*tokenizer.encode(question + shown), tokenizer.eos_token_id])
        width = max(map(len, rows))
        tokens = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
        labels = tokens.masked_fill(tokens == tokenizer.pad_token_id, -100)
        network(input_ids=tokens, attention_mask=(labels != -100).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def taught_model(updates: int) -> tuple[Any, Any]:
    """The model after its lesson, and its tokenizer."""
    base = FreshModel(alphabet="arithmetic", **SIZES)
    tokenizer = character_tokenizer(base)
    network = fresh_network(base, tokenizer, seed=1)
    teach(network, tokenizer, updates)
    return network, tokenizer
