"""Run by test_vllm_servers.py at two ranks: RL under FSDP whose weights go to vLLM servers, gathered one at a time.

FOLDER has servers.json: the model's folder, the servers' addresses, and what every weight is multiplied by first. Each
rank writes FOLDER/RANK.json.
"""

import json
from pathlib import Path
from typing import Any

import torch

from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import make_learner
from mathrl.learners.sharding import load_to_train
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.sharding import is_sharded
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import Prompt
from mathrl.params.training import Training
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.weight_sync import WeightSync
from tests.engines.gloo_transfer import GlooSender
from tests.engines.tiny_rl import MODEL, STEPS, run_rl

PROMPTS = [[5, 6, 7], [8, 9, 10, 11]]


def main(folder: Path) -> None:
    base, urls, scale = json.loads((folder / "servers.json").read_text())
    ranks = Ranks(torch.device("cpu"), Training(backend="fsdp"))
    network, tokenizer = load_to_train(load_model, base, MODEL, ranks), load_tokenizer(base)
    assert is_sharded(network)
    rollout = Rollout(engine="vllm_server", max_sequences=32, servers=Servers(urls=tuple(urls), timeout_seconds=120.0))
    engine: Any = training_engine(network, base, tokenizer, MODEL, rollout, False)
    engine.sender = GlooSender(folder)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(scale)
    policy = make_learner(network, STEPS.optimizer, 1, ranks, name="rl")
    figures = WeightSync(engine, policy, ranks, PROMPTS, 1.0, 8)()
    sent = engine.pool.weights
    # A server that is lost now waits for the next sync: this rank alone cannot gather the weights.
    alone = engine.pool.as_files(sent.digest)
    rows = run_rl(network, Sampler(engine, tokenizer, Prompt()), STEPS, ranks, folder)
    results = {"figures": figures, "digest": sent.digest, "folder": sent.folder, "alone": alone, "rows": rows,
               "digest after": engine.pool.weights.digest, "files": engine.folder is not None}  # fmt: skip
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))
