"""Direct preference optimisation: the pairs as packed groups, the start as the reference.

The reference's log-probs are computed once, before the first step, so that no second model is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.preference import dpo_loss
from mathrl.core.errors import UserError
from mathrl.core.metrics import MetricSink
from mathrl.core.types import Problem
from mathrl.data.templates import render
from mathrl.learners.accumulate import halvable, halving
from mathrl.learners.distributed import Backend
from mathrl.learners.partition import filled
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.packing import Group
from mathrl.params.preference import Dpo
from mathrl.params.run import Prompt
from mathrl.trainers.supervised import Item, fit


def tokenize_pairs(rows: Sequence[Mapping[str, Any]], prompt: Prompt, tokenizer: Any) -> list[Item]:
    """One item a pair: the chosen response, then the rejected one, with the end token where they ended."""
    items = []
    for row in rows:
        problem = Problem.from_row(row["problem"], f"pair of {row['problem_id']}")
        responses = tuple(
            tokenize_response(row[side], tokenizer, ended=row.get(f"{side}_ended", True))
            for side in ("chosen", "rejected")
        )
        items.append(Item(Group(render(problem, prompt, tokenizer), responses)))
    return items


def tokenize_response(text: str, tokenizer: Any, *, ended: bool) -> tuple[int, ...]:
    """The response's tokens; the end token is one of them unless the response was cut off."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return (*ids, tokenizer.eos_token_id) if ended or not ids else tuple(ids)


def train_dpo(
    model: Any,
    pairs: Sequence[Item],
    dev: Sequence[Item],
    params: Dpo,
    seed: int,
    backend: Backend,
    state: Path,
    open_metrics: Callable[[int | None], MetricSink],
) -> dict[str, float]:
    """Train `model`, which is also the reference as it is now, in place; the last figures.

    Raises:
        UserError: no pair to train on.
    """
    if not pairs:
        raise UserError(
            "dpo: there is no pair to learn from: at no problem was one sample right and another wrong; "
            "sample more (sample.samples) or other problems"
        )
    pairs, dev = (with_reference(model, each, params, backend) for each in (pairs, dev))
    if params.lora is not None:
        add_lora(model, params.lora, seed)
    loss_of = partial(pair_loss, model, params)
    return fit(model, pairs, dev, loss_of, params, params.pairs_per_step, seed, backend, state, open_metrics, "dpo")


def pair_loss(model: Any, params: Dpo, items: Sequence[Item]) -> tuple[Tensor, dict[str, float]]:
    """The summed loss of the pairs and its figures; judged_right: the share with a positive margin."""
    chosen_P, rejected_P = response_sums(model, items, params.length_normalised).unbind(1)
    reference_P2 = torch.tensor([item.values for item in items], device=chosen_P.device)
    reference_chosen_P, reference_rejected_P = reference_P2.unbind(1)
    loss_P, margin_P = dpo_loss(
        chosen_P,
        rejected_P,
        reference_chosen_P,
        reference_rejected_P,
        beta=params.beta,
        label_smoothing=params.label_smoothing,
    )
    margin_P = margin_P.detach()
    figures = {
        "loss": float(loss_P.detach().sum()),
        "judged_right": float((margin_P > 0).sum()),
        "margin": float(margin_P.sum()),
        "logprobs/chosen": float(chosen_P.detach().sum()),
        "logprobs/rejected": float(rejected_P.detach().sum()),
    }
    return loss_P.sum(), figures


def response_sums(model: Any, items: Sequence[Item], mean: bool) -> Tensor:
    """Log-probs of whole responses, or their means a token, [items, responses]."""
    groups = [item.group for item in items]
    logprobs_N, _ = response_logprobs(model, groups)
    lengths_S = torch.tensor([len(each) for group in groups for each in group.responses])
    row_of_N = torch.repeat_interleave(torch.arange(len(lengths_S)), lengths_S).to(logprobs_N.device)
    sums_S = logprobs_N.new_zeros(len(lengths_S)).index_add(0, row_of_N, logprobs_N)
    if mean:
        sums_S = sums_S / lengths_S.to(sums_S.device)
    return sums_S.view(len(items), -1)


@torch.no_grad()
def with_reference(model: Any, items: Sequence[Item], params: Dpo, backend: Backend) -> list[Item]:
    """The items with the log-probs of `model` as it is now; each process computes its share."""
    mine = list(items[backend.rank :: backend.world])

    def attempt(tokens: int) -> list[Item]:
        found: list[Item] = []
        with halvable(backend, "log-probs of the reference", tokens, "dpo"):
            for micro in filled(mine, [item.group.packed_tokens for item in mine], tokens):
                rows = response_sums(model, micro, params.length_normalised).tolist()
                found += [replace(item, values=tuple(row)) for item, row in zip(micro, rows, strict=True)]
        return found

    out = list(items)
    for rank, share in enumerate(backend.gather(halving(backend, params.tokens_per_microbatch, attempt, "dpo"))):
        out[rank :: backend.world] = share
    return out
