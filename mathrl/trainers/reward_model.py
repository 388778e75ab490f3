"""Reward models: of complete responses (Bradley-Terry, on pairs) and of steps (on Monte-Carlo labels).

A score is read after a token: a token is appended to the response and its entry taken, since an entry is what
is known before its token (mathrl.models.scores).

Shapes: P pairs; M labelled steps; N response tokens.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mathrl.algorithms.preference import bradley_terry_loss, step_loss
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.data.templates import render, response_end
from mathrl.learners.micro_batches import Figures, TokenBudget
from mathrl.learners.scoring import score_items
from mathrl.learners.sharding import while_scoring
from mathrl.models.lora import add_lora
from mathrl.models.packing import Group
from mathrl.models.scores import token_scores
from mathrl.params.run import Prompt
from mathrl.params.train import RewardModel
from mathrl.rewards.format import step_ends
from mathrl.trainers.preference import tokenize_response
from mathrl.trainers.supervised import Item, Objective, largest_first, train_supervised
from mathrl.trainers.training_run import TrainingRun

Rows = Sequence[Mapping[str, Any]]


def with_replay(new: Sequence[Any], old: Sequence[Any], share: float, seed: int) -> list[Any]:
    """The new rows and a seeded `share` of the old ones (DeepSeekMath, section 4.1.4: 10 %).

    >>> with_replay([1, 2], [7] * 20, 0.1, seed=0)
    [1, 2, 7, 7]
    """
    count = round(share * len(old))
    places = sorted(random.Random(derive_seed(seed, "replay")).sample(range(len(old)), count))
    return [*new, *(old[place] for place in places)]


def tokenize_steps(
    rows: Rows, prompt: Prompt, tokenizer: Any, rule: str, labels: Literal["soft", "hard"]
) -> list[Item]:
    """One item per labelled response; its places are the last tokens of the steps.

    Raises:
        UserError: the number of a response's steps differs from that of its labels.
    """
    items = []
    for row in rows:
        problem = Problem.from_row(row["problem"], f"steps of {row['problem_id']}")
        end = response_end(problem, prompt, tokenizer) if row["ended"] else None
        response = tokenize_response(row["response"], tokenizer, end)
        ends, values = step_ends(response, tokenizer, rule), tuple(float(v) for v in row[labels])
        if len(ends) != len(values):
            raise UserError(
                f"steps of {row['problem_id']}: {len(ends)} steps by reward.steps={rule}, {len(values)} "
                "labels; sample with the same reward.steps"
            )
        items.append(Item(Group(render(problem, prompt, tokenizer), (response,)), values, ends))
    return items


def train_reward_model(
    scorer: Any, items: Sequence[Item], dev: Sequence[Item], params: RewardModel, end_token: int, run: TrainingRun
) -> dict[str, float]:
    """Train `scorer` in place on pairs, or on labelled steps where the items have places; the last figures.

    The mean and deviation of its scores of the training responses (or steps) are left in its config, as
    reward_mean and reward_std.

    Raises:
        UserError: there is nothing to train on.
    """
    if not items:
        raise UserError(
            "reward_model: there is no training data: no problem has both a correct and an incorrect sample, or "
            "no step is labelled; sample more (sample.samples) or other problems"
        )
    if params.lora is not None:
        add_lora(scorer, params.lora, run.seed)
    objective = Objective(
        "reward_model", items, largest_first(dev), partial(items_loss, scorer, end_token), params.batch
    )
    figures = train_supervised(scorer, objective, params, run)
    budget = TokenBudget(run.ranks, params.tokens_per_microbatch, "reward_model")
    sizes = [item.group.packed_tokens for item in items]
    with while_scoring(scorer, run.ranks):
        scores = score_items(budget, "scores of all items", partial(_item_scores, scorer, end_token), items, sizes)
    scores_M = torch.tensor([score for row in scores for score in row])
    scorer.config.reward_mean = float(scores_M.mean())
    scorer.config.reward_std = float(scores_M.std()) if len(scores_M) > 1 else 1.0
    return figures


def items_loss(scorer: Any, end_token: int, items: Sequence[Item]) -> tuple[Tensor, Figures]:
    """The summed loss of pairs or of labelled steps; judged_right: ordered right, or on its label's side."""
    scores = scores_after(scorer, [item.group for item in items], _places(items), end_token)
    if items[0].places:
        labels_M = torch.tensor([value for item in items for value in item.values], device=scores.device)
        loss, right = step_loss(scores, labels_M).sum(), (scores > 0) == (labels_M > 0.5)
    else:
        chosen_P, rejected_P = scores.view(-1, 2).unbind(1)
        loss, right = bradley_terry_loss(chosen_P, rejected_P).sum(), chosen_P > rejected_P
    return loss, {"loss": loss.detach().double(), "judged_right": right.sum().double()}


def _item_scores(scorer: Any, end_token: int, items: Sequence[Item]) -> list[list[float]]:
    """The scores of each item: of its responses, or of its steps."""
    scores = scores_after(scorer, [item.group for item in items], _places(items), end_token)
    counts = [len(item.places) or len(item.group.responses) for item in items]
    return [row.tolist() for row in torch.split(scores, counts)]


def _places(items: Sequence[Item]) -> list[Sequence[int]]:
    """Where the scores of each response are read: at the ends of its steps, or at its end."""
    return [item.places or (len(response) - 1,) for item in items for response in item.group.responses]


def scores_after(scorer: Any, groups: Sequence[Group], places: Sequence[Sequence[int]], end_token: int) -> Tensor:
    """The scores after the tokens at `places` of each response, in order, with a gradient."""
    longer = [Group(g.prompt, tuple(np.append(response, end_token) for response in g.responses)) for g in groups]
    scores_N = token_scores(scorer, longer)
    entries, start = [], 0
    lengths = [len(response) for group in longer for response in group.responses]
    for length, ends in zip(lengths, places, strict=True):
        entries += [start + end + 1 for end in ends]
        start += length
    return scores_N[torch.tensor(entries, device=scores_N.device)]
