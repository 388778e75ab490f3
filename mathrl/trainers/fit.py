"""The flat loop behind dpo and the reward models: minimise a mean loss over items of one prompt each.

The loss and its gradient are those of the global batch, whatever the number of processes and micro-batches.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.metrics import MetricSink
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.models.packing import Group
from mathrl.params.preference import Dpo, RewardModel
from mathrl.trainers.backend import Backend
from mathrl.trainers.checkpoint import Checkpoint, CheckpointFolder
from mathrl.trainers.demonstrations import Stream
from mathrl.trainers.optimizer import FlatParameters, OptimizerSet
from mathrl.trainers.partition import balanced, filled
from mathrl.trainers.stopping import Stopped, StopRequest

MOST_BAD_STEPS = 10


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


def hold_out(rows: Sequence[dict[str, Any]], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Rows to train on and rows of a seeded `share` of the problems, at least one where there are two.

    The problems are put in an order of their own each, so that later rows of other samples hold out much the
    same ones: a reward model that is refreshed meets few of them as rows that it has learned.
    """
    problems = sorted(
        {str(row["problem_id"]) for row in rows}, key=lambda id: derive_seed(seed, "hold out", id)
    )
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
        UserError: more than ten steps had a loss or gradient that is not a number.
        Stopped: after a signal, once the checkpoint is written.
    """
    flat = FlatParameters(model)
    optimizer = OptimizerSet(model, flat, params.optimizer, params.lr, params.steps)
    stream = Stream(len(items), derive_seed(seed, f"{title} order"))
    checkpoints, stop = CheckpointFolder(state / "checkpoints"), StopRequest()
    done, bad, figures = 0, 0, dict[str, float]()
    saved = checkpoints.latest()
    if saved is not None:
        flat.set_weights(saved.tensors.pop("weights").to(backend.device))
        optimizer.load_state(saved.tensors)
        done, stream.cursor = saved.step, saved.values["cursor"]
        bad, figures = saved.values["bad"], saved.values["figures"]
    metrics = open_metrics(done if saved is not None else None) if backend.rank == 0 else None

    def save() -> None:
        if backend.rank == 0:
            values = {"cursor": stream.cursor, "bad": bad, "figures": figures}
            checkpoints.save(Checkpoint(done, {"weights": flat.weights, **optimizer.state()}, values))

    model.train()
    with progress(title, params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            torch.manual_seed(derive_seed(seed, title, done, backend.rank))
            flat.gradients.zero_()
            chosen = [items[stream.take()] for _ in range(batch)]
            row, stopping = _pass(chosen, loss_of, params, backend, train=True, asked=stop.asked)
            backend.sum_(flat.gradients)
            norm = optimizer.clip()
            if math.isfinite(row["loss"]) and math.isfinite(norm):
                factor = optimizer.step(done)
            else:
                factor, bad = 0.0, bad + 1
                if bad > MOST_BAD_STEPS:
                    raise UserError(
                        f"{title}: {bad} steps had a loss or gradient that is not a number; lower {title}.lr"
                    )
            done += 1
            row |= {"grad_norm": norm, "lr_factor": factor, "skipped_updates": float(bad)}
            last = done == params.steps
            if dev and (last or (params.eval_every and done % params.eval_every == 0)):
                row |= {
                    f"dev/{name}": value for name, value in evaluate(model, dev, loss_of, params, backend)
                }
            figures |= row
            if metrics is not None:
                metrics.log(done, row | {"time/step": time.perf_counter() - start})
            bar.advance(loss=row["loss"])
            if last or stopping or done % params.checkpoint_every == 0:
                save()
            if stopping and not last:
                raise Stopped
    stop.close()
    model.eval()
    return figures


@torch.no_grad()
def evaluate(
    model: Any, items: Sequence[Item], loss_of: LossOf, params: Dpo | RewardModel, backend: Backend
) -> list[tuple[str, float]]:
    """The mean figures of held-out items."""
    model.eval()
    row, _ = _pass(items, loss_of, params, backend, train=False)
    model.train()
    return list(row.items())


def _pass(
    items: Sequence[Item], loss_of: LossOf, params: Dpo | RewardModel, backend: Backend, *, train: bool,
    asked: bool = False,
) -> tuple[dict[str, float], bool]:  # fmt: skip
    """Mean figures of the global batch; in training its gradient too, of this process's share."""
    weight = sum(item.weight for item in items)
    sizes = [item.group.packed_tokens for item in items]
    mine = [items[place] for place in balanced(sizes, backend.world)[backend.rank]]
    sums: dict[str, float] = {}
    for micro in filled(mine, [item.group.packed_tokens for item in mine], params.tokens_per_microbatch):
        loss, figures = loss_of(micro)
        if train:
            (loss / weight).backward()  # type: ignore[no-untyped-call]
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + value
    shares = backend.gather((sums, asked))
    names = sorted({name for each, _ in shares for name in each})
    row = {name: sum(each.get(name, 0.0) for each, _ in shares) / weight for name in names}
    return row, any(stopping for _, stopping in shares)
