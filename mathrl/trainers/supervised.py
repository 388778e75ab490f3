"""The flat loop behind dpo and the reward models: minimise a mean loss over items of one prompt each.

The loss and its gradient are those of the global batch, whatever the number of processes and micro-batches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.metrics import MetricSink
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.learners.accumulate import accumulate, halvable, halving
from mathrl.learners.checkpoint import CheckpointFolder, save_point
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner, make_learner
from mathrl.learners.partition import balanced, filled
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.models.packing import Group
from mathrl.params.preference import Dpo, RewardModel
from mathrl.trainers.demonstrations import Stream


@dataclass(frozen=True)
class Item:
    """A prompt with the responses that a loss looks at, and what it needs beside them.

    Example:
        a pair: Item(Group(prompt, (chosen, rejected)), values=(-12.5, -9.0))  # the reference's log-probs
        labelled steps: Item(Group(prompt, (response,)), values=(1.0, 0.25), places=(5, 11))
    """

    group: Group
    values: tuple[float, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def weight(self) -> int:
        """What it counts in a mean: its steps, or 1."""
        return len(self.places) or 1


# The summed loss of items, and sums of figures (loss, accuracy, …) of them.
LossOf = Callable[[Sequence[Item]], tuple[Tensor, Mapping[str, float]]]
Figures = Sequence[Mapping[str, float]]


def hold_out(rows: Sequence[dict[str, Any]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Rows to train on and rows of a seeded `share` of the problems, at least one where there are two.

    The problems are put in an order of their own each, so that later rows of other samples hold out much the
    same ones: a reward model that is refreshed meets few of them as rows that it has learned.
    """
    problems = sorted({str(row["problem_id"]) for row in rows}, key=lambda id: derive_seed(seed, "hold out", id))
    count = min(max(1, round(share * len(problems))), len(problems) - 1) if share else 0
    held = set(problems[:count])
    return (
        [row for row in rows if str(row["problem_id"]) not in held],
        [row for row in rows if str(row["problem_id"]) in held],
    )


def fit(
    model: Any,
    items: Sequence[Item],
    dev: Sequence[Item],
    loss_of: LossOf,
    params: Dpo | RewardModel,
    batch: int,
    seed: int,
    backend: Backend,
    state: Path,
    open_metrics: Callable[[int | None], MetricSink],
    title: str,
) -> dict[str, float]:
    """Train `model` in place, resuming from `state`; the last figures, those on `dev` under dev/.

    Raises:
        UserError: too many steps had a loss or gradient that is not a number.
        Stopped: after a signal, once the checkpoint is written.
    """
    learner = make_learner(model, params.optimizer, params.lr, params.steps, backend, name=title)
    stream = Stream(len(items), derive_seed(seed, f"{title} order"))
    checkpoints, stop = CheckpointFolder(state / "checkpoints"), StopRequest(backend)
    done, figures = 0, dict[str, float]()
    saved = checkpoints.latest()
    if saved is not None:
        learner.load(saved, saved.values["learner"])
        done, stream.cursor = saved.step, saved.values["cursor"]
        figures = saved.values["figures"]
    metrics = open_metrics(done if saved is not None else None) if backend.rank == 0 else None

    def save() -> None:
        values = {"cursor": stream.cursor, "learner": learner.counts, "figures": figures}
        save_point(checkpoints, done, [learner], values, backend.rank)

    model.train()
    with progress(title, params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            torch.manual_seed(derive_seed(seed, title, done, backend.rank))
            chosen = [items[stream.take()] for _ in range(batch)]

            def attempt(tokens: int, chosen: list[Item] = chosen) -> Figures:
                return _gradient(learner, chosen, loss_of, backend, tokens, title)

            sums = halving(backend, params.tokens_per_microbatch, attempt, title)
            row = _means(sums, chosen, backend)
            learner.update(row["loss"])
            done += 1
            row |= {"grad_norm": learner.norm, "lr_factor": learner.factor, "skipped_updates": float(learner.bad)}
            last = done == params.steps
            if dev and (last or (params.eval_every and done % params.eval_every == 0)):
                with learner.scoring():
                    held_out = evaluate(model, dev, loss_of, params, backend, title)
                row |= {f"dev/{name}": value for name, value in held_out}
            figures |= row
            if metrics is not None:
                metrics.log(done, row | {"time/step": time.perf_counter() - start})
            bar.advance(loss=row["loss"])
            due, stopping = stop.boundary(last or done % params.checkpoint_every == 0)
            if due:
                save()
            if stopping and not last:
                raise Stopped
    stop.close()
    learner.finish()
    model.eval()
    return figures


@torch.no_grad()
def evaluate(
    model: Any, items: Sequence[Item], loss_of: LossOf, params: Dpo | RewardModel, backend: Backend, title: str
) -> list[tuple[str, float]]:
    """The mean figures of held-out items."""
    mine, sizes = _share(items, backend)

    def attempt(tokens: int) -> Figures:
        with halvable(backend, "outputs of the dev items", tokens, title):
            micros = backend.evened(filled(mine, sizes, tokens), [items[0]])
            passes = [(loss_of(micro)[1], counted) for micro, counted in micros]
        return [figures for figures, counted in passes if counted]

    model.eval()
    found = halving(backend, params.tokens_per_microbatch, attempt, title)
    model.train()
    return list(_means(found, items, backend).items())


def _gradient(
    learner: Learner, items: Sequence[Item], loss_of: LossOf, backend: Backend, tokens: int, title: str
) -> Figures:
    """Fill the gradient with that of the mean over the global batch; sums of figures of each micro-batch."""
    weight = sum(item.weight for item in items)
    mine, sizes = _share(items, backend)

    def mean_of(micro: Sequence[Item]) -> tuple[Tensor, Mapping[str, float]]:
        loss, figures = loss_of(micro)
        return loss / weight, figures

    return accumulate(learner, backend, mine, sizes, tokens, items[0], mean_of, title)


def _share(items: Sequence[Item], backend: Backend) -> tuple[list[Item], list[int]]:
    """This process's items, and their sizes."""
    everyone = [item.group.packed_tokens for item in items]
    mine = [items[place] for place in balanced(everyone, backend.world)[backend.rank]]
    return mine, [item.group.packed_tokens for item in mine]


def _means(figures: Figures, items: Sequence[Item], backend: Backend) -> dict[str, float]:
    """Mean figures of the global batch."""
    weight = sum(item.weight for item in items)
    sums: dict[str, float] = {}
    for each in figures:
        for name, value in each.items():
            sums[name] = sums.get(name, 0.0) + value
    shares = backend.gather(sums)
    names = sorted({name for each in shares for name in each})
    return {name: sum(each.get(name, 0.0) for each in shares) / weight for name in names}
