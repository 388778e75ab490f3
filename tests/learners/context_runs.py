"""Run by test_context_parallel.py: ranks that share micro-batches beside plain torch, over 2 and 4 ranks.

python context_runs.py OUT; rank 0 of each world writes OUT/WORLD.pt. The worlds are forked one after the other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.learners.distributed import Ranks
from mathrl.models import packing
from mathrl.models.base import fresh_network
from mathrl.models.context_parallel import SharedLayout, alone, share_rows
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group, pack
from mathrl.models.prepared import Kernel, compute_as
from mathrl.models.top_tokens import candidate_logprobs, top_tokens
from mathrl.params.loss import Truncated
from mathrl.params.optimizer import Lora
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt
from mathrl.params.train import Rl, Sft
from mathrl.params.training import Fsdp, Training
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from tests.engines import deepspeed_runs
from tests.forked_ranks import in_ranks
from tests.learners import fsdp_runs
from tests.learners.fsdp_runs import demonstrations, weights
from tests.learners.kept_bytes import kept_bytes as memory_kept
from tests.trainers import small

# Four ranks have one query head each, and a key head for two of them.
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, alphabet="arithmetic")
WIDE = FreshModel(hidden_size=64, intermediate_size=176, layers=3, heads=4, kv_heads=2)
SFT = fsdp_runs.SFT.model_copy(update={"steps": 2, "eval_every": 2})
ADAPTED = SFT.model_copy(update={"lora": Lora(r=2)})
PPO = fsdp_runs.PPO.model_copy(update={"steps": 2})
GSPO = small.changed(
    PPO, advantage="grpo", loss={"type": "gspo", "entropy_coef": 0.01}, steps=2, importance=Truncated(),
    gradient_checkpointing=True, ema=None,
)  # fmt: skip
LONG = [Group((5, 6, 7), ((8,) * 40, (9, 10) * 20)), Group((11,) * 9, ((12, 13),))]
ROWS = {  # what shares rows: blocks with a shared prompt, ranks without a response token, whole long sequences
    "blocks": [Group((5, 6, 7), ((8, 9, 10, 11), (12, 13))), Group((4,), ((9, 3),))],
    "few": [Group((5, 6, 7, 8) * 6, ((9, 2),))],
    "long": LONG,
    "varlen": LONG,
}
MEASURED = [Group([5 + i] * 20, [[7 + i] * 60] * 4) for i in range(4)]


def sharing(ranks: int) -> Training:
    return Training(backend="fsdp", fsdp=Fsdp(context_parallel=ranks))  # type: ignore[arg-type]


def sft(training: Training, state: Path, params: Sft) -> Any:
    model, groups = fresh_network(BASE, small.TOKENIZER, seed=3).eval(), demonstrations(40)
    train_sft(model, groups[3:], groups[:3], params, small.training_run(state, training=training))
    return model


def rl(training: Training, state: Path, params: Rl) -> Any:
    model = fresh_network(BASE, small.TOKENIZER, seed=3).eval()
    with torch.no_grad():  # answers that depend on the weights
        for weight in model.parameters():
            weight.mul_(1.5)
    sampler = Sampler(TorchEngine(model, small.TOKENIZER, Rollout()), small.TOKENIZER, Prompt())
    run = small.training_run(state, training=training)
    train_rl(model, sampler, small.PROBLEMS, small.PROBLEMS[:3], small.CountsOnes(), params, run, Helpers())
    return model


RUNS: dict[str, Callable[[Training, Path], Any]] = {
    "sft": partial(sft, params=SFT),
    "dpo": deepspeed_runs.dpo,
    "reward_model": deepspeed_runs.reward_model,
    "adapters": partial(sft, params=ADAPTED),
    "ppo": partial(rl, params=PPO),
    "gspo": partial(rl, params=GSPO),
}


def trained(out: Path, name: str, training: Training) -> Any:
    state = out / f"{name} {training.backend} {training.fsdp.context_parallel}"
    model = RUNS[name](training, state)
    file = state / "metrics.jsonl"
    return weights(model), without_timings(file) if file.exists() else []


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """One mistake: each rank attends to its own tokens alone, or the figures of each rank are counted."""
    owner, name, wrong = {
        "own tokens": (SharedLayout, "_exchange", lambda layout, blocks_C: blocks_C),
        "figures": (Ranks, "gather_shares", Ranks.gather),
    }[fault]
    right = getattr(owner, name)
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


def values_and_gradient(model: Any, groups: list[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs, entropies and candidates' log-probs; the gradient of a sum that weighs each token and candidate."""
    model.zero_grad(set_to_none=False)
    logprobs_N, entropies_N = response_logprobs(model, groups, 0.7)
    scale_N = torch.linspace(0.5, 1.5, len(logprobs_N)) / len(logprobs_N)
    top = top_tokens(model, groups, 0.7, 3, len(small.TOKENIZER))
    _, _, chosen_NK = candidate_logprobs(model, groups, 0.7, top.ids_NK)
    weighed_N = logprobs_N + 0.1 * entropies_N + chosen_NK @ torch.tensor([0.3, -0.2, 0.1])
    (scale_N * weighed_N).sum().backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return torch.cat([logprobs_N, entropies_N, top.logprobs_NK.flatten(), chosen_NK.flatten()]).detach(), gradient


def rows(ranks: Ranks) -> dict[str, Any]:
    """Of each kind of row: values and gradient of a rank alone, and of ranks that share it, their gradients summed."""
    model = fresh_network(BASE, small.TOKENIZER, seed=3).eval()
    response_logprobs(model, ROWS["blocks"])
    assert ranks.context is not None
    share_rows(model, ranks.context, packed=True)
    results = {}
    usual = packing.LONG
    for name, groups in ROWS.items():
        packing.LONG = 32 if groups is LONG else usual
        kernel: Kernel = "varlen" if name == "varlen" else "cpu"
        compute_as(model, replace(prepare_language_model(model), kernel=kernel))
        with alone(model):
            expected = values_and_gradient(model, groups)
        values, gradient = values_and_gradient(model, groups)
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        results[name] = (*expected, values, gradient)
    packing.LONG = usual
    return results


def kept_bytes(ranks: Ranks) -> dict[str, Any]:
    """Bytes that autograd keeps of a micro-batch at the rank that keeps most: alone, and shared."""
    model = fresh_network(WIDE, small.TOKENIZER, seed=0).train()
    use_fast_norms(model)  # which the plan counts
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    response_logprobs(model, MEASURED[:1])
    assert ranks.context is not None
    share_rows(model, ranks.context, packed=True)

    def counted() -> int:
        with memory_kept(own) as kept:
            held = response_logprobs(model, MEASURED)
        del held
        return sum(kept.values())

    with alone(model):
        before = counted()
    tokens = pack(MEASURED).input_ids_1T.shape[1]
    return {"alone": before, "shared": max(ranks.gather(counted())), "tokens": tokens}


def refusals(ranks: Ranks) -> list[str]:
    """Why heads, a padded model and positions that follow the longest sequence are refused."""
    messages = []
    for change, packed in (
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, True),
        ({}, False),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, True),
    ):
        model = fresh_network(BASE, small.TOKENIZER, seed=3)
        for name, value in change.items():
            setattr(model.config, name, value)
        assert ranks.context is not None
        try:
            share_rows(model, ranks.context, packed)
        except UserError as error:
            messages.append(str(error))
    return messages


def of_two(out: Path) -> None:
    ranks = Ranks(torch.device("cpu"), sharing(2))
    results: dict[str, Any] = {"rows": rows(ranks), "bytes": kept_bytes(ranks), "refusals": refusals(ranks)}
    for name in RUNS:
        results[name] = [trained(out, name, training) for training in (Training(), sharing(2))]
    for fault in ("own tokens", "figures"):
        with planted(fault):
            results[fault] = trained(out / fault, "sft", sharing(2))
    write(out, results, ranks)


def of_four(out: Path) -> None:
    ranks = Ranks(torch.device("cpu"), sharing(4))
    results: dict[str, Any] = {"rows": rows(ranks), "bytes": kept_bytes(ranks)}
    results["ppo"] = [trained(out / "4", "ppo", training) for training in (Training(), sharing(2))]
    results["sft"] = trained(out / "4", "sft", sharing(4))
    write(out, results, ranks)


def write(out: Path, results: dict[str, Any], ranks: Ranks) -> None:
    if ranks.rank == 0:
        torch.save(results, out / f"{ranks.world}.pt")


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for world, work in ((2, of_two), (4, of_four)):
        in_ranks(world, partial(work, out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
