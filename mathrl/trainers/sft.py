"""Supervised fine-tuning on packed demonstrations, loss on the response's own tokens only.

Shapes: N response tokens of a micro-batch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from mathrl.learners.micro_batches import Figures
from mathrl.models.dropout import disable_dropout
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.packing import Group
from mathrl.params.train import Sft
from mathrl.trainers.supervised import Item, LossOf, Objective, train_supervised
from mathrl.trainers.training_run import TrainingRun


def train_sft(
    model: Any, demonstrations: Sequence[Group], dev: Sequence[Group], params: Sft, run: TrainingRun
) -> dict[str, float]:
    """Minimise the mean negative log-likelihood of response tokens, in place.

    Returns the last figures: loss, dev/loss, tokens_seen (each went forward and backward), …

    Raises:
        UserError: too many steps had a non-finite loss or gradient.
        Stopped: after a signal, once the checkpoint is written.
    """
    if not params.dropout:
        disable_dropout(model)
    if params.lora is not None:
        add_lora(model, params.lora, run.seed)
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    objective = sft_objective(demonstrations, dev, partial(negative_log_likelihood, model), params)
    return train_supervised(model, objective, params, run)


def sft_objective(demonstrations: Sequence[Group], dev: Sequence[Group], loss_of: LossOf, params: Sft) -> Objective:
    """The mean of `loss_of` over the responses' own tokens, in steps of params.tokens_per_step packed tokens."""
    return Objective(
        "sft",
        [_item(group) for group in demonstrations],
        [_item(group) for group in dev],
        loss_of,
        tokens_per_step=params.tokens_per_step,
    )


def negative_log_likelihood(model: Any, items: Sequence[Item]) -> tuple[Tensor, Figures]:
    """The sum over all response tokens, in nats."""
    logprobs_N, _ = response_logprobs(model, [item.group for item in items], entropy=False)
    return -logprobs_N.sum(), {}


def _item(group: Group) -> Item:
    return Item(group, terms=sum(group.counts))
