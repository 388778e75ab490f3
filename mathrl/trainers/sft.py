"""Supervised fine-tuning: one flat loop over packed demonstrations, loss on the response's tokens only.

Shapes: N response tokens of a micro-batch.
"""

import math
import time
from collections.abc import Callable, Sequence
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
from mathrl.learners.learner import make_learner
from mathrl.learners.partition import balanced, filled
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.packing import Group
from mathrl.params.train import Sft
from mathrl.trainers.demonstrations import Stream, next_batch

LossOf = Callable[[list[Group]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SftResult:
    """Tokens that went through the model (each forward and backward), and the last losses."""

    steps: int
    tokens: int
    loss: float
    dev_loss: float | None


def train_sft(
    model: Any,
    demonstrations: Sequence[Group],
    dev: Sequence[Group],
    params: Sft,
    seed: int,
    backend: Backend,
    state: Path,
    open_metrics: Callable[[int | None], MetricSink],
    *,
    title: str = "sft",
) -> SftResult:
    """Minimise the mean negative log-likelihood of response tokens, in place.

    Resumes from `state`. The loss and its gradient are those of the global batch, whatever the number of
    processes and micro-batches.

    Raises:
        UserError: too many steps had a loss or gradient that is not a number.
        Stopped: after a signal, once the checkpoint is written.
    """
    if params.lora is not None:
        add_lora(model, params.lora, seed)
    learner = make_learner(model, params.optimizer, params.lr, params.steps, backend, name="sft")
    stream = Stream(len(demonstrations), derive_seed(seed, "sft order"))
    checkpoints, stop = CheckpointFolder(state / "checkpoints"), StopRequest(backend)
    done, tokens_seen = 0, 0
    saved = checkpoints.latest()
    if saved is not None:
        learner.load(saved, saved.values["learner"])
        done, stream.cursor = saved.step, saved.values["cursor"]
        tokens_seen = saved.values["tokens_seen"]
    metrics = open_metrics(done if saved is not None else None) if backend.rank == 0 else None

    def save() -> None:
        values = {"cursor": stream.cursor, "tokens_seen": tokens_seen, "learner": learner.counts}
        save_point(checkpoints, done, [learner], values, backend.rank)

    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    loss, dev_loss = math.nan, None
    with progress(title, params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            torch.manual_seed(derive_seed(seed, "sft", done, backend.rank))
            batch = next_batch(stream, demonstrations, params.tokens_per_step)
            tokens_seen += sum(group.packed_tokens for group in batch)
            predicted = sum(len(group.responses[0]) for group in batch)

            mine = [batch[i] for i in balanced([g.packed_tokens for g in batch], backend.world)[backend.rank]]
            sizes = [group.packed_tokens for group in mine]

            def loss_of(micro: list[Group], predicted: int = predicted) -> tuple[Tensor, Tensor]:
                logprobs_N, _ = response_logprobs(model, micro)
                micro_loss = -logprobs_N.sum() / predicted
                return micro_loss, micro_loss.detach()

            def attempt(
                tokens: int,
                mine: list[Group] = mine,
                sizes: list[int] = sizes,
                spare: Group = batch[0],
                loss_of: LossOf = loss_of,
            ) -> list[Tensor]:
                return accumulate(learner, backend, mine, sizes, tokens, spare, loss_of, "sft")

            losses = halving(backend, params.tokens_per_microbatch, attempt, "sft")
            total = torch.zeros(1, device=backend.device)
            for micro_loss in losses:
                total += micro_loss
            backend.sum_(total)
            loss = float(total)
            learner.update(loss)
            done += 1

            seconds = time.perf_counter() - start
            figures = {
                "loss": loss,
                "grad_norm": learner.norm,
                "lr_factor": learner.factor,
                "tokens_seen": tokens_seen,
                "skipped_updates": learner.bad,
                "time/step": seconds,
                "throughput/tokens_per_second": sum(g.packed_tokens for g in batch) / seconds,
            }
            last = done == params.steps
            if dev and (last or (params.eval_every and done % params.eval_every == 0)):
                with learner.scoring():
                    dev_loss = demonstration_loss(model, dev, params.tokens_per_microbatch, backend)
                figures["dev/loss"] = dev_loss
            if metrics is not None:
                metrics.log(done, figures)
            bar.advance(loss=loss)
            due, stopping = stop.boundary(last or done % params.checkpoint_every == 0)
            if due:
                save()
            if stopping and not last:
                raise Stopped
    stop.close()
    learner.finish()
    model.eval()
    return SftResult(done, tokens_seen, loss, dev_loss)


@torch.no_grad()
def demonstration_loss(model: Any, groups: Sequence[Group], budget: int, backend: Backend) -> float:
    """Mean negative log-likelihood (nats) of the response tokens of held-out demonstrations."""
    mine = groups[backend.rank :: backend.world]

    def attempt(tokens: int) -> Tensor:
        sums = torch.zeros(2, device=backend.device)
        with halvable(backend, "log-probs of the dev demonstrations", tokens, "sft"):
            micros = filled(mine, [group.packed_tokens for group in mine], tokens)
            for micro, counted in backend.evened(micros, [groups[0]]):
                logprobs_N, _ = response_logprobs(model, micro)
                if not counted:
                    continue
                count = torch.tensor(float(len(logprobs_N)), device=sums.device)
                sums += torch.stack([-logprobs_N.sum(), count])
        return sums

    model.eval()
    sums = halving(backend, budget, attempt, "sft")
    model.train()
    backend.sum_(sums)
    return float(sums[0] / sums[1])
