"""Direct preference optimisation: the pairs as packed groups, the start as the reference.

The reference's log-probs are computed once, before the first step, so that no second model is kept.

Shapes: P pairs; S responses, N their tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.preference import dpo_loss
from mathrl.algorithms.returns import response_sums
from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.templates import render, response_end
from mathrl.learners.micro_batches import Figures, TokenBudget
from mathrl.learners.scoring import score_items
from mathrl.learners.sharding import while_scoring
from mathrl.models.device import to_device
from mathrl.models.dropout import disable_dropout
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.packing import Group
from mathrl.params.run import Prompt
from mathrl.params.train import Dpo
from mathrl.trainers.supervised import Item, Objective, largest_first, train_supervised
from mathrl.trainers.training_run import TrainingRun


def tokenize_pairs(rows: Sequence[Mapping[str, Any]], prompt: Prompt, tokenizer: Any) -> list[Item]:
    """One item per pair: the chosen response, then the rejected one, each with the end token if it ended."""
    items = []
    for row in rows:
        problem = Problem.from_row(row["problem"], f"pair of {row['problem_id']}")
        end = response_end(problem, prompt, tokenizer)
        responses = tuple(
            tokenize_response(row[side], tokenizer, end if row.get(f"{side}_ended", True) else None)
            for side in ("chosen", "rejected")
        )
        items.append(Item(Group(render(problem, prompt, tokenizer), responses)))
    return items


def tokenize_response(text: str, tokenizer: Any, end: int | None) -> tuple[int, ...]:
    """The response's tokens and its end token, None where it was cut off; an empty response has the tokenizer's."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    if end is None and not ids:
        end = tokenizer.eos_token_id
    return tuple(ids) if end is None else (*ids, end)


def train_dpo(
    model: Any, pairs: Sequence[Item], dev: Sequence[Item], params: Dpo, run: TrainingRun
) -> dict[str, float]:
    """Train `model`, which is also the reference as it is now, in place; the last figures.

    Raises:
        UserError: there is no pair to train on.
    """
    if not pairs:
        raise UserError(
            "dpo: there are no pairs: no problem has both a correct and an incorrect sample; "
            "sample more (sample.samples) or other problems"
        )
    budget = TokenBudget(run.ranks, params.tokens_per_microbatch, "dpo")
    with while_scoring(model, run.ranks):
        pairs, dev = (with_reference(model, items, params, budget) for items in (pairs, dev))
    disable_dropout(model)
    if params.lora is not None:
        add_lora(model, params.lora, run.seed)
    objective = Objective("dpo", pairs, largest_first(dev), partial(pair_loss, model, params), params.pairs_per_step)
    return train_supervised(model, objective, params, run)


def pair_loss(model: Any, params: Dpo, items: Sequence[Item]) -> tuple[Tensor, Figures]:
    """The summed loss of the pairs and its figures; judged_right: the share with a positive margin."""
    chosen_P, rejected_P = response_logprob_sums(model, items, params.length_normalised).unbind(1)
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
    sums = {
        "loss": loss_P.sum(),
        "judged_right": (margin_P > 0).sum(),
        "margin": margin_P.sum(),
        "logprobs/chosen": chosen_P.sum(),
        "logprobs/rejected": rejected_P.sum(),
    }
    return loss_P.sum(), {name: value.detach().double() for name, value in sums.items()}


def response_logprob_sums(model: Any, items: Sequence[Item], mean: bool) -> Tensor:
    """Log-probs of complete responses, or their means per token, [items, responses]."""
    groups = [item.group for item in items]
    logprobs_N, _ = response_logprobs(model, groups, entropy=False)
    lengths = [len(response) for group in groups for response in group.responses]
    lengths_S = to_device(torch.tensor(lengths), logprobs_N.device)
    sums_S = response_sums(logprobs_N, lengths_S)
    if mean:
        sums_S = sums_S / lengths_S
    return sums_S.view(len(items), -1)


def with_reference(model: Any, items: Sequence[Item], params: Dpo, budget: TokenBudget) -> list[Item]:
    """The items with the log-probs of `model` as it is now; each rank computes its share."""

    def values_of(micro: list[Item]) -> list[tuple[float, ...]]:
        return [tuple(row) for row in response_logprob_sums(model, micro, params.length_normalised).tolist()]

    sizes = [item.group.packed_tokens for item in items]
    values = score_items(budget, "log-probs of the reference", values_of, items, sizes)
    return [replace(item, values=row) for item, row in zip(items, values, strict=True)]
