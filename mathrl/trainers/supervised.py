"""The supervised loop of SFT, DPO and reward models: minimise a mean loss over items of one prompt each.

The loss and its gradient are those of the global batch, whatever the number of ranks and micro-batches.

Problems with solutions → token ids to imitate, and a seeded endless order of them.
"""

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.metrics import progress
from mathrl.core.types import Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.data.templates import demonstration, is_chat, quote_control_tokens, render, response_end
from mathrl.learners.checkpoint import CheckpointFolder, save_checkpoint
from mathrl.learners.learner import Learner, make_learner
from mathrl.learners.micro_batches import Figures, TokenBudget, add_gradient, attempts, reduce_figures
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.learners.scoring import eval_mode, own_passes
from mathrl.models.packing import Group
from mathrl.params.run import Prompt
from mathrl.params.train import Dpo, RewardModel, Sft
from mathrl.rollout.call_formats import pieces_of
from mathrl.trainers.training_run import TrainingRun

THINK = "<think>"


def tokenize_demonstrations(
    problems: Sequence[Problem], prompt: Prompt, tokenizer: Any, terse_share: float, seed: int, calls: bool = False
) -> list[Group]:
    """One group per problem, with one response, the end token included (`response_end`).

    A seeded `terse_share` of the responses is the answer alone, the others are the worked solution. A <think> that the
    prompt has opened is not opened again. With `calls` the outputs of ```python blocks are read and not learned; they
    are tokenized apart, as they are while sampling.

    Raises:
        UserError: there is no problem, or a problem whose worked solution is to be learned has none, or the chat
            template opens a reasoning block that the solution does not close, or a prompt holds its own answer.
    """
    if not problems:
        raise UserError("sft: there is no demonstration; give the sft split problems in params/curate.yaml")
    check_prompts(problems, prompt, tokenizer)
    order = list(range(len(problems)))
    random.Random(derive_seed(seed, "terse")).shuffle(order)
    terse = set(order[: round(terse_share * len(problems))])
    groups = []
    for index, problem in enumerate(problems):
        text = demonstration(problem, prompt, terse=index in terse)
        if problem.control.response is None:  # the words of a data set, not of a model
            text = quote_control_tokens(text, tokenizer)
        prompt_ids = render(problem, prompt, tokenizer)
        if is_chat(problem, prompt) and tokenizer.decode(prompt_ids).rstrip().endswith(THINK):
            text = _continuation(text, problem)
        end = response_end(problem, prompt, tokenizer)
        pieces = pieces_of(text) if calls else [(text, True)]
        tokens = [(tokenizer.encode(piece, add_special_tokens=False), learned) for piece, learned in pieces]
        response = [*(token for ids, _ in tokens for token in ids), end]
        learned = np.array([*(flag for ids, flag in tokens for _ in ids), True])
        groups.append(Group(prompt_ids, (response,), () if learned.all() else (learned,)))
    return groups


def _continuation(text: str, problem: Problem) -> str:
    """The response after a prompt that ends in an open <think>."""
    if problem.control.response is None and "</think>" not in text:
        raise UserError(
            f"problem {problem.id}: the model's chat template opens <think>, which the solution does not close: turn "
            "thinking off with prompt.chat_template_kwargs={enable_thinking: false} if the template reads it, write "
            "the solutions as reasoning</think>answer, or set prompt.template to boxed"
        )
    return re.sub(rf"\A{re.escape(THINK)}\n?", "", text)


class Stream:
    """Item numbers, in a new seeded order each epoch; `cursor` counts those taken."""

    def __init__(self, size: int, seed: int, cursor: int = 0) -> None:
        self.size, self.seed, self.cursor = size, seed, cursor
        self._epoch = -1
        self._order: list[int] = []

    def take(self) -> int:
        epoch, place = divmod(self.cursor, self.size)
        if epoch != self._epoch:
            self._order = list(range(self.size))
            random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(self._order)
            self._epoch = epoch
        self.cursor += 1
        return self._order[place]


@dataclass(frozen=True)
class Item:
    """A prompt with the responses that a loss looks at, and what it needs beside them.

    Example:
        a demonstration: Item(Group(prompt, (response,)), terms=len(response))
        a pair: Item(Group(prompt, (chosen, rejected)), values=(-12.5, -9.0))  # the reference's log-probs
        labelled steps: Item(Group(prompt, (response,)), values=(1.0, 0.25), places=(5, 11))
    """

    group: Group
    values: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    terms: int = 0

    @property
    def weight(self) -> int:
        """How many terms the item adds to a mean: those it is given (its tokens), its steps, or 1."""
        return self.terms or len(self.places) or 1


# The summed loss of items, and sums of figures (accuracy, margin, …) of them.
LossOf = Callable[[Sequence[Item]], tuple[Tensor, Figures]]


@dataclass(frozen=True)
class Objective:
    """What `train_supervised` minimises.

    `name` is the section of the parameters, which also names the progress bar and seeds the run. A step takes
    `items_per_step` items or, where that is None, as many as fit into `tokens_per_step` packed tokens.
    """

    name: str
    items: Sequence[Item]
    dev: Sequence[Item]
    loss_of: LossOf
    items_per_step: int | None = None
    tokens_per_step: int = 0

    def next_batch(self, stream: Stream) -> list[Item]:
        """The items of the next step, at least one."""
        if self.items_per_step is not None:
            return [self.items[stream.take()] for _ in range(self.items_per_step)]
        batch = [self.items[stream.take()]]
        room = self.tokens_per_step - batch[0].group.packed_tokens
        while True:
            item = self.items[stream.take()]
            room -= item.group.packed_tokens
            if room < 0:
                stream.cursor -= 1
                return batch
            batch.append(item)


def largest_first(items: Sequence[Item]) -> list[Item]:
    """Held-out items by decreasing size, so that ranks, which take every world-th one, have even shares."""
    return sorted(items, key=lambda item: -item.group.packed_tokens)


def hold_out(rows: Sequence[dict[str, Any]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Rows to train on, and the rows of a seeded `share` of the problems, at least one of two or more.

    The order of the problems depends on the problems alone, so that rows of later samples hold out much the
    same ones: a reward model that is refreshed meets few of them as rows that it was trained on.
    """
    problems = sorted({str(row["problem_id"]) for row in rows}, key=lambda id: derive_seed(seed, "hold out", id))
    count = min(max(1, round(share * len(problems))), len(problems) - 1) if share else 0
    held = set(problems[:count])
    return (
        [row for row in rows if str(row["problem_id"]) not in held],
        [row for row in rows if str(row["problem_id"]) in held],
    )


def train_supervised(
    model: Any, objective: Objective, params: Sft | Dpo | RewardModel, run: TrainingRun
) -> dict[str, float]:
    """Train `model` in place, resuming from `run.state`; the last figures, those of the dev items under dev/.

    Raises:
        UserError: too many steps had a non-finite loss or gradient.
        Stopped: after a signal, once the checkpoint is written.
    """
    name, ranks = objective.name, run.ranks
    learner = make_learner(model, params.optimizer, params.steps, ranks, name=name)
    budget = TokenBudget(ranks, params.tokens_per_microbatch, name)
    stream = Stream(len(objective.items), derive_seed(run.seed, f"{name} order"))
    checkpoints = CheckpointFolder(run.state / "checkpoints")
    done, tokens_seen, figures = 0, 0, dict[str, float]()
    saved = checkpoints.latest()
    if saved is not None:
        learner.load(saved, saved.values["learner"])
        done, stream.cursor = saved.step, saved.values["cursor"]
        tokens_seen, figures = saved.values["tokens_seen"], saved.values["figures"]
    log = run.open_log(done)
    model.train()
    with StopRequest(ranks) as stop, progress(name, params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            torch.manual_seed(derive_seed(run.seed, name, done, ranks.rank))
            batch = objective.next_batch(stream)
            tokens = sum(item.group.packed_tokens for item in batch)
            row = _means(reduce_figures(_gradient(budget, learner, batch, objective.loss_of), ranks), batch)
            learner.update(row["loss"])
            done, tokens_seen = done + 1, tokens_seen + tokens
            row |= {"grad_norm": learner.norm, "lr_factor": learner.factor}
            if objective.items_per_step is None:
                row["tokens_seen"] = float(tokens_seen)
            row["skipped_updates"] = float(learner.bad)
            seconds = time.perf_counter() - start
            last = done == params.steps
            if objective.dev and (last or (params.eval_every and done % params.eval_every == 0)):
                with learner.while_scoring():
                    held_out = evaluate(model, objective, budget)
                row |= {f"dev/{figure}": value for figure, value in held_out.items()}
            figures |= row
            row |= {"time/step": seconds, "throughput/tokens_per_second": tokens / seconds}
            log.write(done, row)
            log.check_health(done, row)
            bar.advance(loss=row["loss"])
            save, stopping = stop.boundary(last or done % params.checkpoint_every == 0)
            if save:
                values = {
                    "cursor": stream.cursor,
                    "tokens_seen": tokens_seen,
                    "learner": learner.counts,
                    "figures": figures,
                }
                save_checkpoint(checkpoints, done, [learner], values, ranks.rank)
            if stopping and not last:
                raise Stopped
    learner.finish()
    model.eval()
    return figures


def _gradient(budget: TokenBudget, learner: Learner, items: Sequence[Item], loss_of: LossOf) -> list[Figures]:
    """Add up this rank's part of the gradient of the mean over the global batch; its micro-batches' figures."""
    weight = sum(item.weight for item in items)
    sizes = [item.group.packed_tokens for item in items]

    def mean_loss(micro: Sequence[Item]) -> tuple[Tensor, Figures]:
        total, sums = loss_of(micro)
        loss = total / weight
        return loss, {"minimised": loss.detach(), **sums}

    forward = learner.through_root(mean_loss)
    for attempt in attempts(budget):
        with attempt as now:
            figures: list[Figures] = []
            for micro, counts in learner.micro_batches(sizes, now.tokens):
                figures += add_gradient(learner.backward, forward([items[i] for i in micro]), counts)
    return figures


def evaluate(model: Any, objective: Objective, budget: TokenBudget) -> dict[str, float]:
    """The mean figures of the held-out items."""

    def sums_of(micro: list[Item]) -> Figures:
        loss, sums = objective.loss_of(micro)
        return {"loss": loss, **sums}

    sizes = [item.group.packed_tokens for item in objective.dev]
    with eval_mode(model):
        sums = own_passes(budget, "outputs of the dev items", sums_of, objective.dev, sizes)
    return _means(reduce_figures(sums, budget.ranks), objective.dev)


def _means(sums: Figures, items: Sequence[Item]) -> dict[str, float]:
    """The figures' means over the items, and the loss that was minimised, which is a mean already."""
    weight = sum(item.weight for item in items)
    means = {name: float(total / weight) for name, total in sums.items() if name != "minimised"}
    if "minimised" in sums:
        means.setdefault("loss", float(sums["minimised"]))
    return dict(sorted(means.items()))
