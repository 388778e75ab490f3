"""Reinforcement learning with verifiable rewards, one flat loop:
sample → grade → advantages → loss → step → log.

GRPO (outcome and process), Dr.GRPO, RLOO, DAPO, GSPO, CISPO, REINFORCE(++), ReMax, online RFT, PPO and
on-policy distillation are settings of the functions it calls. What differs from DeepSeekMath's GRPO: the
sampler is the trainer's own model, or is sent its weights after each step and checked, so the sampled
log-probs are the old ones and no forward pass computes them; without a KL weight there is no reference model;
the weights that are evaluated and exported are an exponential average of those that are trained.

Shapes: P groups of G responses in the global batch; N response tokens of it.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from mathrl.core.hashing import derive_seed
from mathrl.core.progress import progress
from mathrl.core.types import Problem
from mathrl.health.mismatch import check_mismatch
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.params.loss import KlProbe
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rewards.counters import merged_counters
from mathrl.rollout.resolve import resolve_importance
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.batch import make_batch
from mathrl.trainers.critic import CriticFigures, critic_gradient
from mathrl.trainers.dev_evaluation import evaluate_dev
from mathrl.trainers.open_rl import Helpers, open_rl
from mathrl.trainers.policy_update import StepFigures, minibatches, probe_kl, update_gradient
from mathrl.trainers.rollouts import metrics_by_source, rollout_metrics, tool_metrics
from mathrl.trainers.training_run import TrainingRun


@dataclass(frozen=True)
class RlResult:
    """Steps done, tokens sampled and tokens trained on (packed, prompts once per group).

    `dev_accuracy` is that of the weights the model ends with, those after `exported_step` steps; None if it
    was not measured.
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
    run: TrainingRun,
    helpers: Helpers | None = None,
) -> RlResult:
    """Train `model`, which `sampler`'s engine samples from, in place; resumes from `run.state`.

    The model ends with the averaged weights where `params.ema` is set, with `dev.export: best` those of the best step.

    Raises:
        UserError: no prompt fits, a teacher or judge is missing, too many updates are non-finite, or health ends it.
        Stopped: after a signal, once the checkpoint is written.
    """
    params, ranks, warned_mismatch = resolve_importance(params, sampler.engine.rollout), run.ranks, 1.0
    setup = open_rl(model, sampler, problems, reward, params, run, helpers or Helpers())
    policy, critic, state, sync, collector = setup.policy, setup.critic, setup.state, setup.sync, setup.collector
    stream = setup.stream
    critic_only_steps = params.critic.warmup_steps if params.critic is not None else 0
    with StopRequest(ranks) as stop, stream or nullcontext(), progress("rl", params.steps, state.step) as bar:
        while state.step < params.steps:
            start = time.perf_counter()
            step_seed, step_params = derive_seed(run.seed, "rl", state.step, ranks.rank), params.at_step(state.step)
            torch.manual_seed(step_seed)
            if stream is None and not ranks.divides:  # rank 0 can write a checkpoint without the others
                stop.hold(setup.checkpoint_writer())

            # Sample and grade: each rank its share of the prompts; then every rank has all of them.
            if stream is not None:
                rollouts = collector.collect(step_seed, stream.take(), stream.paused)
            else:
                with sync.while_sampling():
                    rollouts = collector.collect(step_seed)
                sync.sleep()
            sampled_at = time.perf_counter()

            # Advantages: of the global batch, at every rank.
            with setup.scoring():
                reference = setup.reference if params.kl_coef else None
                values_of = critic.model if critic is not None else None
                batch, figures = make_batch(
                    rollouts.groups, step_params, ranks, model, reference, setup.teacher, values_of, state.kl_coef
                )
                if isinstance(params.kl, KlProbe):
                    figures["kl"] = probe_kl(rollouts.groups, setup.reference, params, ranks)
            scored_at = time.perf_counter()

            # Loss and optimizer steps.
            stop.release()
            for learner in setup.learners:
                learner.model.train()
            policy_figures, critic_figures = StepFigures(), CriticFigures()
            for part in minibatches(batch, params, run.seed, state.step):
                if critic is not None:
                    value_figures = critic_gradient(critic, params, part)
                    critic.update(value_figures.loss)
                    critic_figures.add(value_figures, critic.norm)
                if state.step < critic_only_steps:
                    continue
                update = update_gradient(policy, params, part, state.kl_coef)
                dropped = params.loss.drop_ratio is not None and update.mean_ratio > params.loss.drop_ratio
                policy.drop() if dropped else policy.update(update.loss)
                policy_figures.add(update, 0.0 if dropped else policy.norm, dropped)
                state.trained_tokens += int(update.trained)
            for learner in setup.learners:
                learner.model.eval()
            state.step += 1
            state.sampled_tokens += rollouts.tokens
            setup.keep_rollouts(rollouts, batch)

            # Log.
            end = time.perf_counter()
            row = {
                **rollout_metrics(rollouts.sampled, rollouts.groups),
                **(tool_metrics(rollouts.sampled) if sampler.turns is not None else {}),
                **({"rollout/sampling_rounds": rollouts.rounds} if params.dynamic_sampling else {}),
                **critic_figures.metrics(batch),
                **metrics_by_source(rollouts.sampled, problems),
                **policy_figures.metrics(params),
                **(policy_figures.mismatch() if sync.engine else {}),
                **merged_counters(rollouts.counters),
                **collector.order.metrics(),
                **figures,
                "lr_factor": policy.factor,
                "skipped_updates": policy.bad,
                "rollout/dropped_prompts": collector.prompts.count(None),
                "time/step": end - start,
                **rollouts.times(tools=sampler.turns is not None),
                "time/scores": scored_at - sampled_at,
                "time/update": end - scored_at,
                "throughput/tokens_per_second": rollouts.tokens / (end - start),
            }
            row |= setup.adapt_kl_coef(row, len(batch.lengths_S))
            last = state.step == params.steps
            with stream.paused(updating=True) if stream is not None else nullcontext():
                if dev and (last or (params.dev.every and state.step % params.dev.every == 0)):
                    evaluated_from = time.perf_counter()
                    row |= evaluate_dev(collector, dev, policy, sync, run.seed)
                    row["time/eval"] = time.perf_counter() - evaluated_from
                    setup.keep_dev_accuracy(row)
                row |= sync()
                if stream is not None:
                    row |= stream.update(state.step, policy.updates)
                    row["rollout/staleness"] = row.get("rollout/staleness", 0.0) + row["rollout/lag"]
                setup.log.write(state.step, row)
                setup.log.check_health(state.step, row)
                warned_mismatch = check_mismatch(row, sampler.engine.rollout, state.step, warned_mismatch)
                bar.advance(accuracy=row["reward/accuracy"], length=row["response_length"])
                save, stopping = stop.boundary(last or state.step % params.checkpoint_every == 0)
                write_checkpoint = setup.checkpoint_writer() if save else None
            if write_checkpoint is not None:
                write_checkpoint()
            if stopping and not last:
                raise Stopped
    setup.finish()
    exported_step = state.exported_step if params.dev.export == "best" and state.exported_step else state.step
    return RlResult(state.step, state.sampled_tokens, state.trained_tokens, state.dev_accuracy, exported_step)
