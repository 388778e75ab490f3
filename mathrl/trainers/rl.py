"""Reinforcement learning with verifiable rewards, one flat loop:
sample → grade → advantages → loss → step → log.

GRPO (outcome and process), Dr.GRPO, RLOO, DAPO, GSPO, CISPO, REINFORCE(++), ReMax, online RFT, PPO and
on-policy distillation are settings of the functions it calls. What differs from DeepSeekMath's GRPO: the
sampler is the trainer's own model, or is sent its weights after each step and checked, so the sampled
log-probs are the old ones and no forward pass computes them; without a KL weight there is no reference model;
the weights that are evaluated and exported are an exponential average of those that are trained.

Shapes: P groups of G responses in the global batch; N response tokens of it.
"""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mathrl.algorithms.advantages import uniform_groups
from mathrl.algorithms.kl import adapted_kl_coef
from mathrl.core.errors import UserError
from mathrl.core.metrics import MetricSink
from mathrl.core.out_of_memory import memory_part
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.health.mismatch import check_mismatch
from mathrl.learners.checkpoint import CheckpointFolder, save_point
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import make_learner
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.learners.torch_learner import share_gradients
from mathrl.models.linear import keep_rounded_only
from mathrl.models.lora import add_lora
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.batch import make_batch
from mathrl.trainers.collect import Judge, collect
from mathrl.trainers.critic import CriticFigures, critic_gradient, make_critic
from mathrl.trainers.curriculum import ProblemOrder
from mathrl.trainers.dev_evaluation import evaluate_dev
from mathrl.trainers.kl_probe import probe_kl
from mathrl.trainers.policy_update import UpdateFigures, minibatches, update_gradient
from mathrl.trainers.prefetch import Ahead, draw
from mathrl.trainers.rollouts import merged_counters, metrics_by_source, rollout_metrics
from mathrl.trainers.weight_sync import WeightSync


@dataclass(frozen=True)
class RlResult:
    """Steps done, tokens sampled and tokens trained on (packed, prompts once a group).

    `dev_accuracy` is that of the weights the model ends with, those after `exported_step` steps.
    """

    steps: int
    sampled_tokens: int
    trained_tokens: int
    dev_accuracy: float | None
    exported_step: int


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
    critic: Any = None,
) -> RlResult:
    """Train `model`, which `sampler`'s engine samples from, in place; resumes from `state`.

    `reference` is the model of the KL (a copy of the start if none is given). `judge` is called at each
    process on its own groups after grading, and may replace their rewards or add rewards of steps. `teacher`
    is the model of on-policy distillation. `critic` is the scorer that PPO's critic starts from (else as
    `rl.critic` says).

    At the end the model holds the averaged weights where `params.ema` is set, with `export: best` those of
    the best dev accuracy.

    Raises:
        UserError: no problem whose prompt fits, a missing teacher or judge, or too many updates that are not
            a number.
        Stopped: after a signal, once the checkpoint is written.
    """
    check_helpers(params, judge, teacher)
    if params.lora is not None:
        add_lora(model, params.lora, seed)
    if not (params.kl_coef or params.kl_probe):
        reference = None
    elif reference is None:
        # Adapters are switched off for it, so it needs no copy.
        with memory_part("reference's weights", "set rl.lora, or rl.kl_coef and rl.kl_probe to 0"):
            reference = model if params.lora else copy.deepcopy(model).requires_grad_(False)
    for frozen in (reference, teacher):
        if frozen is not None and frozen is not model:
            keep_rounded_only(frozen)
    a_step = params.epochs * params.minibatches
    only_critic = params.critic.warmup_steps if params.critic is not None else 0
    valuer = None
    if params.critic is not None:
        valuer = make_critic(params.critic, model, critic, params.steps * a_step, seed, backend)
    policy = make_learner(
        model, params.optimizer, params.lr, (params.steps - only_critic) * a_step, backend, name="rl", ema=params.ema
    )
    learners = [policy] if valuer is None else [policy, valuer]
    share_gradients(learners)
    prompts = [sampler.prompt_tokens(problem) for problem in problems]
    usable = [index for index, prompt in enumerate(prompts) if prompt is not None]
    if not usable:
        raise UserError("rl: every prompt is longer than prompt.max_tokens; raise it in params/prompt.yaml")
    order = ProblemOrder(params.curriculum, problems, usable, params.steps * params.prompts_per_step, seed)
    checkpoints, stop = CheckpointFolder(state / "checkpoints"), StopRequest(backend)
    done, kl_coef, counts = 0, params.kl_coef, {"sampled": 0, "trained": 0, "exported": 0}
    dev_accuracy: float | None = None
    mismatch = 1.0  # what was warned of last
    saved = checkpoints.latest()
    if saved is not None:
        policy.load(saved, saved.values["policy"])
        if valuer is not None:
            valuer.load(saved, saved.values["critic"])
        order.load(saved.values["order"])
        done, kl_coef, counts = saved.step, saved.values["kl_coef"], dict(saved.values["counts"])
        dev_accuracy = saved.values["dev_accuracy"]
    metrics = open_metrics(done if saved is not None else None) if backend.rank == 0 else None
    fitting = [prompts[index] or () for index in usable]
    sync = WeightSync(sampler.engine, policy, backend, fitting, params.temperature, params.max_tokens)
    sync()
    if params.prefetch and sync.engine is None:
        raise UserError("rl.prefetch is on, but the sampler has no weights of its own: give it a copy")
    ahead = Ahead(params, backend, saved.values if saved is not None else None)

    def point() -> Callable[[], None]:
        """What writes a checkpoint of the run as it is now."""
        values = {
            "policy": policy.counts,
            "critic": valuer.counts if valuer is not None else None,
            "order": order.state(),
            "kl_coef": kl_coef,
            "counts": dict(counts),
            "dev_accuracy": dev_accuracy,
            **ahead.state(),
        }
        return partial(save_point, checkpoints, done, learners, values, backend.rank)

    if params.gradient_checkpointing:
        for learner in learners:
            learner.model.gradient_checkpointing_enable({"use_reentrant": False})
    with progress("rl", params.steps, done) as bar:
        while done < params.steps:
            start = time.perf_counter()
            step_seed = derive_seed(seed, "rl", done, backend.rank)
            torch.manual_seed(step_seed)
            if not (ahead.on or backend.plain):  # else other processes are needed to write it
                stop.hold(point())

            # Sample and grade: each process its share of the prompts; then every process knows all.
            first = ahead.take()
            with sync.while_sampling():
                rollouts = collect(sampler, problems, prompts, order, reward, judge, params, backend, step_seed, first)
            lag = policy.updates - first.updates if first is not None else 0
            if not ahead.on:
                sync.sleep()
            elif done + 1 < params.steps:
                next_seed = derive_seed(seed, "rl", done + 1, backend.rank)
                call = partial(draw, sampler, problems, order, reward, params, backend, next_seed)
                ahead.start(partial(call, policy.updates), reward)
            sampled_at = time.perf_counter()

            # Advantages: of the whole batch, at every process.
            with ExitStack() as scoring:
                for learner in learners:
                    scoring.enter_context(learner.scoring())
                batch, row = make_batch(
                    rollouts.groups,
                    params,
                    backend,
                    model,
                    reference if params.kl_coef else None,
                    teacher,
                    valuer.model if valuer is not None else None,
                    kl_coef,
                )
                if params.kl_probe and not params.kl_coef:
                    row["kl"] = probe_kl(rollouts.groups, reference, params, backend)
            scored_at = time.perf_counter()

            # Loss and step.
            stop.release()
            model.train()
            update, values = UpdateFigures(), CriticFigures()
            for epoch in range(params.epochs):
                split_seed = derive_seed(seed, "split", done, epoch)
                for chosen in minibatches(len(batch.groups), params.minibatches, split_seed):
                    part = batch.part(chosen)
                    if valuer is not None:
                        value_figures = critic_gradient(valuer, params, backend, part)
                        valuer.update(value_figures.loss)
                        values.add(value_figures, valuer.norm)
                    if done < only_critic:
                        continue
                    figures = update_gradient(policy, params, backend, part, kl_coef)
                    dropped = params.drop_ratio is not None and figures.mean_ratio > params.drop_ratio
                    if dropped:
                        policy.drop()
                    else:
                        policy.update(figures.loss)
                    counts["trained"] += int(figures.trained)
                    update.add(figures, 0.0 if dropped else policy.norm, dropped)
            model.eval()
            waited = ahead.wait()
            done += 1

            # Log.
            end = time.perf_counter()
            tokens = sum(group.sampled_tokens for group in rollouts.everything)
            counts["sampled"] += tokens
            uniform = int(uniform_groups(torch.tensor([group.rewards for group in batch.groups])).sum())
            row = {
                **rollout_metrics(rollouts.everything, uniform / len(batch.groups)),
                **values.metrics(batch),
                **metrics_by_source(rollouts.everything, problems),
                **update.metrics(params),
                **(update.mismatch() if sync.engine else {}),
                **merged_counters(rollouts.counters),
                **row,
                "lr_factor": policy.factor,
                "skipped_updates": policy.bad,
                "rollout/dropped_prompts": len(problems) - len(usable),
                "time/step": end - start,
                "time/rollout": rollouts.seconds["generation"],
                "time/reward": rollouts.seconds["reward"],
                "time/scores": scored_at - sampled_at,
                "time/update": end - scored_at,
                "throughput/tokens_per_second": tokens / (end - start),
            }
            if ahead.on:
                staleness = row.get("rollout/staleness", 0.0) + lag
                row |= {"rollout/lag": lag, "rollout/staleness": staleness, "time/rollout_wait": waited}
            if params.dynamic_sampling:
                row["rollout/sampling_rounds"] = rollouts.rounds
            if params.kl_coef:
                row["kl_coef"] = kl_coef
            if params.kl_controller is not None and "kl" in row:
                goal = params.kl_controller
                samples = len(batch.lengths_S)
                kl_coef = adapted_kl_coef(kl_coef, row["kl"], samples, goal.target, goal.horizon)
            last = done == params.steps
            if dev and (last or (params.eval_every and done % params.eval_every == 0)):
                dev_row = evaluate_dev(sampler, dev, reward, params, seed, backend, policy, sync)
                row |= dev_row | {"time/eval": time.perf_counter() - end}
                unknown = dev_accuracy is None
                if params.export == "last" or unknown or dev_row["dev/accuracy"] > (dev_accuracy or 0.0):
                    dev_accuracy, counts["exported"] = dev_row["dev/accuracy"], done
                    if params.export == "best":
                        policy.keep_best()
            row |= sync()
            if metrics is not None:
                metrics.log(done, row)
            mismatch = check_mismatch(row, sampler.engine.rollout, done, mismatch)
            bar.advance(accuracy=row["reward/accuracy"], length=row["response_length"])
            save, stopping = stop.boundary(last or done % params.checkpoint_every == 0)
            if save:
                point()()
            if stopping and not last:
                raise Stopped
    stop.close()
    sync.sleep()  # under ZeRO 3 the whole model comes to each process now
    for learner in learners:
        learner.finish()
    exported = counts["exported"] if params.export == "best" and counts["exported"] else done
    return RlResult(done, counts["sampled"], counts["trained"], dev_accuracy, exported)


def check_helpers(params: Rl, judge: Judge | None, teacher: Any) -> None:
    """Raises UserError: the advantage needs a model that was not given, or a model has no use."""
    if params.advantage == "distillation" and teacher is None:
        raise UserError("rl.advantage is distillation, but there is no teacher; give the run a teacher model")
    if params.advantage != "distillation" and teacher is not None:
        raise UserError(
            f"a teacher is given, but rl.advantage is {params.advantage}: set it to distillation, or "
            "leave the teacher out"
        )
    if params.advantage == "process" and judge is None:
        raise UserError(
            "rl.advantage is process, but nothing gives rewards of steps; give the run a process reward model"
        )
