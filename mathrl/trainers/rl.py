"""Reinforcement learning with verifiable rewards, one flat loop:
sample → grade → advantages → loss → step → log.

GRPO, Dr.GRPO, RLOO and DAPO's loss are settings of the functions it calls. What differs from DeepSeekMath's
GRPO: the sampler is the trainer's own model, so the sampled log-probs are the old ones and no forward pass
computes them; without a KL weight there is no reference model; the weights that are evaluated and exported
are an exponential average of those that are trained.

Shapes: P groups of G responses in the global batch, S = P G; N response tokens of a micro-batch.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.advantages import group_advantages, uniform_groups
from mathrl.core.errors import UserError
from mathrl.core.metrics import MetricSink
from mathrl.core.nouns import Problem
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.models.lora import add_lora
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.backend import Backend
from mathrl.trainers.checkpoint import Checkpoint, CheckpointFolder
from mathrl.trainers.demonstrations import Stream
from mathrl.trainers.optimizer import FlatParameters, OptimizerSet
from mathrl.trainers.rollouts import RolloutGroup, merged_counters, rollout_group, rollout_metrics
from mathrl.trainers.stopping import Stopped, StopRequest
from mathrl.trainers.update import UpdateFigures, minibatches, update_gradient

Judge = Callable[[list[RolloutGroup]], list[RolloutGroup]]
MOST_BAD_UPDATES = 10


@dataclass(frozen=True)
class RlResult:
    """Steps done, tokens sampled and tokens trained on (packed, prompts once a group), last dev accuracy."""

    steps: int
    sampled_tokens: int
    trained_tokens: int
    dev_accuracy: float | None


def train_rl(
    model: Any,
    sampler: Sampler,
    problems: Sequence[Problem],
    dev: Sequence[Problem],
    reward: RewardFunction,
    params: Rl,
    seed: int,
    backend: Backend,
    state: Path,
    open_metrics: Callable[[int | None], MetricSink],
    *,
    reference: Any = None,
    judge: Judge | None = None,
    teacher: Any = None,
) -> RlResult:
    """Train `model`, which `sampler`'s engine samples from, in place; resumes from `state`.

    `reference` is the model of the KL (a copy of the start if none is given). `judge` is called at each
    process on its own groups after grading, and may replace their rewards or add rewards of steps. `teacher`
    is the model of on-policy distillation.

    At the end the model holds the averaged weights where `params.ema` is set.

    Raises:
        UserError: no problem whose prompt fits, or too many updates that are not a number.
        Stopped: after a signal, once the checkpoint is written.
    """
    if params.lora is not None:
        add_lora(model, params.lora, seed)
    flat = FlatParameters(model)
    optimizer = OptimizerSet(
        model, flat, params.optimizer, params.lr, params.steps * params.epochs * params.minibatches
    )
    if not params.kl_coef:
        reference = None
    elif reference is None:
        # Adapters are switched off for it, so it needs no copy.
        reference = model if params.lora else copy.deepcopy(model).requires_grad_(False)
    prompts = [sampler.prompt_tokens(problem) for problem in problems]
    usable = [index for index, prompt in enumerate(prompts) if prompt is not None]
    if not usable:
        raise UserError("rl: every prompt is longer than prompt.max_tokens; raise it in params/prompt.yaml")
    stream = Stream(len(usable), derive_seed(seed, "rl order"))
    averaged = flat.weights.clone() if params.ema else None
    checkpoints, stop = CheckpointFolder(state / "checkpoints"), StopRequest()
    done, counts = 0, {"updates": 0, "bad": 0, "sampled": 0, "trained": 0}
    dev_accuracy: float | None = None
    saved = checkpoints.latest()
    if saved is not None:
        flat.set_weights(saved.tensors.pop("weights").to(backend.device))
        if averaged is not None:
            averaged.copy_(saved.tensors.pop("averaged"))
        optimizer.load_state(saved.tensors)
        done, stream.cursor, counts = saved.step, saved.values["cursor"], dict(saved.values["counts"])
        dev_accuracy = saved.values["dev_accuracy"]
    metrics = open_metrics(done if saved is not None else None) if backend.rank == 0 else None

    def save() -> None:
        if backend.rank == 0:
            tensors = {"weights": flat.weights, **optimizer.state()}
            if averaged is not None:
                tensors["averaged"] = averaged
            values = {"cursor": stream.cursor, "counts": counts, "dev_accuracy": dev_accuracy}
            checkpoints.save(Checkpoint(done, tensors, values))

    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    sampling = Sampling(params.group_size, params.temperature, params.max_tokens)
    with progress("rl", params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            step_seed = derive_seed(seed, "rl", done, backend.rank)
            torch.manual_seed(step_seed)

            # Sample and grade: each process its share of the prompts; then every process knows all.
            chosen = [usable[stream.take()] for _ in range(params.prompts_per_step)]
            mine = chosen[backend.rank :: backend.world]
            graded = sampler.sample([problems[index] for index in mine], sampling, reward, step_seed)
            own = [
                rollout_group(index, prompts[index] or (), group)
                for index, group in zip(mine, graded, strict=True) if group is not None
            ]  # fmt: skip
            own = judge(own) if judge is not None else own
            sampled_at = time.perf_counter()
            shares = backend.gather((own, stop.asked, reward.counters()))
            groups = [group for share, _, _ in shares for group in share]
            stopping = any(asked for _, asked, _ in shares)

            # Advantages: of the whole batch, at every process.
            rewards_PG = torch.tensor([group.rewards for group in groups])
            advantages_PG = group_advantages(
                rewards_PG, params.advantage, ddof=params.std_ddof, eps=params.std_eps
            )
            uniform = int(uniform_groups(rewards_PG).sum())

            # Loss and step.
            model.train()
            update = UpdateFigures()
            for epoch in range(params.epochs):
                for part in minibatches(
                    len(groups), params.minibatches, derive_seed(seed, "split", done, epoch)
                ):
                    figures = update_gradient(
                        model, reference, flat, params, backend,
                        [groups[index] for index in part], advantages_PG[part],
                    )  # fmt: skip
                    norm = optimizer.clip()
                    if math.isfinite(norm) and math.isfinite(figures.loss):
                        factor = optimizer.step(counts["updates"])
                        if averaged is not None and params.ema:
                            averaged.lerp_(flat.weights, 1 - params.ema)
                    else:
                        factor, counts["bad"] = 0.0, counts["bad"] + 1
                        if counts["bad"] > MOST_BAD_UPDATES:
                            raise UserError(
                                f"rl: {counts['bad']} updates had a loss or gradient that is not a number; "
                                "lower rl.lr or rl.optimizer.muon_lr"
                            )
                    counts["updates"] += 1
                    counts["trained"] += figures.trained
                    update.add(figures, norm)
            model.eval()
            done += 1
            tokens = sum(len(response) for group in groups for response in group.responses)
            counts["sampled"] += tokens

            # Log.
            end = time.perf_counter()
            row = {
                **rollout_metrics(groups, uniform), **update.metrics(params),
                **merged_counters([counters for _, _, counters in shares]), "lr_factor": factor,
                "skipped_updates": counts["bad"], "rollout/dropped_prompts": len(problems) - len(usable),
                "time/step": end - start, "time/rollout": sampler.seconds["generation"],
                "time/reward": sampler.seconds["reward"], "time/update": end - sampled_at,
                "throughput/tokens_per_second": tokens / (end - start),
            }  # fmt: skip
            last = done == params.steps
            if dev and (last or (params.eval_every and done % params.eval_every == 0)):
                dev_row = evaluate_dev(sampler, dev, reward, params, seed, backend, flat, averaged)
                dev_accuracy = dev_row["dev/accuracy"]
                row |= dev_row | {"time/eval": time.perf_counter() - end}
            if metrics is not None:
                metrics.log(done, row)
            bar.advance(accuracy=row["reward/accuracy"], length=row["response_length"])
            if last or stopping or done % params.checkpoint_every == 0:
                save()
            if stopping and not last:
                raise Stopped
    stop.close()
    if averaged is not None:
        flat.set_weights(averaged)
    return RlResult(done, counts["sampled"], counts["trained"], dev_accuracy)


def evaluate_dev(
    sampler: Sampler,
    dev: Sequence[Problem],
    reward: RewardFunction,
    params: Rl,
    seed: int,
    backend: Backend,
    flat: FlatParameters,
    averaged: Tensor | None,
) -> dict[str, float]:
    """Accuracy and length on the dev problems, with the averaged weights where there are any.

    The same random numbers at every evaluation, so that two of them differ by the weights alone.
    """
    trained = flat.weights.clone()
    if averaged is not None:
        flat.set_weights(averaged)
    sampling = Sampling(params.eval_samples, params.eval_temperature, params.max_tokens)
    mine = list(dev[backend.rank :: backend.world])
    dropped = sampler.dropped
    graded = sampler.sample(mine, sampling, reward, derive_seed(seed, "dev", backend.rank))
    sampler.dropped = dropped
    reward.counters()  # begins anew: the counters of a step are those of its roll-outs
    flat.set_weights(trained)
    rows = [(each.correct, len(each.completion.tokens)) for group in graded if group for each in group]
    gathered = [row for share in backend.gather(rows) for row in share]
    count = max(1, len(gathered))
    return {
        "dev/accuracy": sum(correct for correct, _ in gathered) / count,
        "dev/response_length": sum(length for _, length in gathered) / count,
    }
