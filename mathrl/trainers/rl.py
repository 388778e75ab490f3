"""Reinforcement learning with verifiable rewards, one flat loop:
collect → score → batch → update → evaluate and log.

GRPO (outcome and process), Dr.GRPO, RLOO, DAPO, GSPO, CISPO, REINFORCE(++), ReMax, online RFT, PPO and
on-policy distillation are settings of the functions it calls. What differs from DeepSeekMath's GRPO: the
sampler is the trainer's own model, or is sent its weights after each step and checked, so the sampled
log-probs are the old ones and no forward pass computes them; without a KL weight there is no reference model;
the weights that are evaluated and exported are an exponential average of those that are trained.

With rl.asynchronous a second loop calls the same functions, while a stream samples in a thread of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mathrl.core.hashing import derive_seed
from mathrl.core.metrics import progress
from mathrl.core.results import eval_name
from mathrl.core.types import Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.learners.preemption import Stopped, StopRequest
from mathrl.learners.sharding import load_to_train
from mathrl.models.device import halve_threads, hardware_of
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.train import Asynchronous, Rl
from mathrl.rewards.cascade import merged_counters
from mathrl.rewards.compose import RewardFunction, build_reward
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.resolve import resolve_importance, resolve_rollout
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.server_engine import ServerEngine
from mathrl.trainers.batch import Batch, make_batch
from mathrl.trainers.collect import StepRollouts, dev_figures
from mathrl.trainers.critic import CriticFigures, critic_gradient
from mathrl.trainers.experts import expert_groups, shown_groups
from mathrl.trainers.judges import open_judge
from mathrl.trainers.open_rl import Helpers, RlSetup, check_experts, check_teacher, open_rl
from mathrl.trainers.policy_update import StepFigures, minibatches, update_gradient
from mathrl.trainers.response_filters import filter_metrics
from mathrl.trainers.rollout_stream import RolloutStream
from mathrl.trainers.rollouts import metrics_by_source, rollout_metrics, tool_metrics
from mathrl.trainers.scores import group_logprobs, score
from mathrl.trainers.training_run import RlInputs, RlResult, TrainedModel, TrainingRun


def train(inputs: RlInputs) -> TrainedModel:
    """Train the model of a folder by mathrl's own loop (rl.engine: mathrl).

    Raises:
        UserError: as `train_rl`; or the sampler's engine is not available, or a prompt shows its problem's answer.
    """
    params, rl, run, others = inputs.params, inputs.params.rl, inputs.run, inputs.others
    ranks, hardware = run.ranks, hardware_of(run.ranks.device)
    longest = stage_longest(params, "rl")
    rollout = resolve_rollout(params.rollout, inputs.start, params.model, hardware, longest=longest, ranks=ranks.world)
    rl = resolve_importance(rl, rollout)
    inputs.resolved(rollout, rl)
    if rl.kept_size and ranks.rank == 0:
        print(f"rl.keep_rollouts: {rl.kept_size}", flush=True)
    network = load_to_train(load_model, inputs.start, params.model, ranks)
    tokenizer = load_tokenizer(inputs.start, params.model)
    at_once = rl.asynchronous is not None and rl.asynchronous.staleness
    if at_once and rollout.engine == "torch" and ranks.device.type == "cpu":
        halve_threads()
    ahead = rl.asynchronous is not None
    check_experts(network.config, rl, rollout)
    if "teacher" in others:
        check_teacher(others["teacher"], load_tokenizer(others["teacher"], params.model), inputs.start, tokenizer)
    engine = training_engine(network, inputs.start, tokenizer, params.model, rollout, ahead, rl.lora)
    sampler = Sampler(engine, tokenizer, params.prompt, inputs.few_shot)
    further = [problem for problems in inputs.benchmarks.values() for problem in problems]
    check_prompts([*inputs.problems, *inputs.dev, *further], params.prompt, tokenizer)
    if "critic" in others and rl.critic is not None:
        critic = rl.critic.model_copy(update={"path": str(others["critic"])})
        rl = rl.model_copy(update={"advantage": rl.advantage.model_copy(update={"critic": critic})})
    frozen = {
        name: load_to_train(load_model, others[name], params.model, ranks).requires_grad_(False)
        for name in ("reference", "teacher")
        if name in others
    }
    judge = open_judge(params, rl, sampler, inputs.problems, ranks.device, others)
    helpers = Helpers(judge=judge, benchmarks=inputs.benchmarks, **frozen)
    reward = build_reward(params.reward)
    try:
        result = train_rl(network, sampler, inputs.problems, inputs.dev, reward, rl, run, helpers)
    finally:
        if isinstance(engine, ServerEngine):
            engine.close()
    return TrainedModel(network, tokenizer, result)


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
    params = resolve_importance(params, sampler.engine.rollout)
    setup = open_rl(model, sampler, problems, reward, params, run, helpers or Helpers())
    if params.asynchronous is not None:
        return train_rl_asynchronously(setup, dev, params.asynchronous)
    state, sync = setup.state, setup.sync
    with StopRequest(run.ranks) as stop, progress("rl", params.steps, state.step) as bar:
        while state.step < params.steps:
            step = begin_step(setup)
            if not run.ranks.divides:  # rank 0 can write a checkpoint without the others
                stop.hold(setup.checkpoint_writer())
            with sync.while_sampling():
                rollouts = replace(setup.collector, params=step.params).collect(step.seed)
            sync.sleep()
            step.lap()
            batch, figures = batch_step(setup, step, rollouts)
            step.lap()
            stop.release()
            updates = update(setup, step, batch)
            row = end_step(setup, step, rollouts, batch, figures, updates)
            row |= evaluate(setup, dev)
            row |= sync()
            log_step(setup, row)
            bar.advance(accuracy=row["reward/accuracy"], length=row["response_length"])
            save, stopping = stop.boundary(setup.checkpoint_due)
            if save:
                setup.checkpoint_writer()()
            if stopping and not setup.last:
                raise Stopped
    return setup.finish()


def train_rl_asynchronously(setup: RlSetup, dev: Sequence[Problem], asynchronous: Asynchronous) -> RlResult:
    """`train_rl` with a sampler that goes on while the policy is updated, paused where the weights change."""
    params, run, state = setup.params, setup.run, setup.state
    groups = setup.saved["stream"] if setup.saved is not None else None
    stream = RolloutStream(setup.collector, asynchronous, run, state.step, groups)
    with StopRequest(run.ranks) as stop, stream, progress("rl", params.steps, state.step) as bar:
        while state.step < params.steps:
            step = begin_step(setup)
            rollouts = setup.collector.collect(step.seed, stream.take(), stream.pause)
            step.lap()
            batch, figures = batch_step(setup, step, rollouts)
            step.lap()
            updates = update(setup, step, batch)
            row = end_step(setup, step, rollouts, batch, figures, updates)
            with stream.pause(updating=True):
                row |= evaluate(setup, dev)
                row |= setup.sync()
                row |= stream.update(state.step, setup.policy.updates)
                row["rollout/staleness"] = row.get("rollout/staleness", 0.0) + row["rollout/lag"]
                log_step(setup, row)
                bar.advance(accuracy=row["reward/accuracy"], length=row["response_length"])
                save, stopping = stop.boundary(setup.checkpoint_due)
                write_checkpoint = setup.checkpoint_writer(stream.state()) if save else None
            if write_checkpoint is not None:
                write_checkpoint()
            if stopping and not setup.last:
                raise Stopped
    return setup.finish()


@dataclass
class Step:
    """A step under way: its seed, parameters, values of schedules, and when its parts ended (rollouts, scores)."""

    seed: int
    params: Rl
    schedules: dict[str, float]
    times: list[float]

    def lap(self) -> None:
        self.times.append(time.perf_counter())


@dataclass
class Updates:
    """The figures of a step's updates so far."""

    policy: StepFigures = field(default_factory=StepFigures)
    critic: CriticFigures = field(default_factory=CriticFigures)


def begin_step(setup: RlSetup) -> Step:
    """The next step, with its seed for all that draws from torch."""
    start, run, number = time.perf_counter(), setup.run, setup.state.step
    seed = derive_seed(run.seed, "rl", number, run.ranks.rank)
    torch.manual_seed(seed)
    schedules = setup.params.schedules
    values = schedules.values_at(number) if schedules is not None else {}
    return Step(seed, setup.step_params(), values, [start])


def batch_step(setup: RlSetup, step: Step, rollouts: StepRollouts) -> tuple[Batch, dict[str, float]]:
    """The global batch at every rank: the groups that are trained on, and experts', with their scores; its figures."""
    params, ranks, policy = step.params, setup.run.ranks, setup.policy.model
    critic = setup.critic.model if setup.critic is not None else None
    with setup.while_scoring():
        collector = replace(setup.collector, params=params)
        experts = expert_groups(
            rollouts.groups, collector, lambda groups: group_logprobs(policy, "policy", groups, params, ranks)
        )
        groups = [*rollouts.groups, *experts]
        shown = shown_groups(groups, collector)
        scores = score(groups, params, ranks, policy, setup.reference, setup.teacher, critic, shown)
    return make_batch(groups, params, scores, setup.state.kl_coef)


def update(setup: RlSetup, step: Step, batch: Batch) -> Updates:
    """The step's updates of the critic, where there is one, and of the policy, once the critic has warmed up."""
    params, state, policy, critic, figures = step.params, setup.state, setup.policy, setup.critic, Updates()
    critic_only_steps = params.critic.warmup_steps if params.critic is not None else 0
    for learner in setup.learners:
        learner.model.train()
    for part in minibatches(batch, params, setup.run.seed, state.step):
        if critic is not None:
            value_figures = critic_gradient(critic, params, part)
            critic.update(value_figures.loss)
            figures.critic.add(value_figures, critic.norm)
        if state.step < critic_only_steps:
            continue
        gradient = update_gradient(policy, params, part, state.kl_coef)
        dropped = params.loss.drop_ratio is not None and gradient.mean_ratio > params.loss.drop_ratio
        policy.drop() if dropped else policy.update(gradient.loss)
        figures.policy.add(gradient, 0.0 if dropped else policy.norm, dropped)
        state.trained_tokens += int(gradient.trained)
    for learner in setup.learners:
        learner.model.eval()
    return figures


def end_step(
    setup: RlSetup, step: Step, rollouts: StepRollouts, batch: Batch, figures: dict[str, float], updates: Updates
) -> dict[str, float]:
    """Count the step, keep its rollouts, and give its metrics."""
    params, state, policy, collector = step.params, setup.state, setup.policy, setup.collector
    state.step += 1
    state.sampled_tokens += rollouts.tokens
    setup.keep_rollouts(rollouts, batch, params)
    step.lap()
    start, sampled_at, scored_at, end = step.times
    tools = collector.sampler.turns is not None
    row = {
        **rollout_metrics(rollouts.sampled, rollouts.groups),
        **(tool_metrics(rollouts.sampled) if tools else {}),
        **({"rollout/sampling_rounds": rollouts.rounds} if params.dynamic_sampling else {}),
        **updates.critic.metrics(batch),
        **metrics_by_source(rollouts.sampled, collector.problems),
        **filter_metrics(rollouts.sampled, params.filters),
        **updates.policy.metrics(params),
        **(updates.policy.mismatch() if setup.sync.engine else {}),
        **merged_counters(rollouts.counters),
        **collector.order.metrics(),
        **figures,
        **{f"schedule/{name}": value for name, value in step.schedules.items()},
        "lr_factor": policy.factor,
        "skipped_updates": policy.bad,
        "rollout/dropped_prompts": collector.prompts.count(None),
        "time/step": end - start,
        **rollouts.times(tools=tools),
        "time/scores": scored_at - sampled_at,
        "time/update": end - scored_at,
        "throughput/tokens_per_second": rollouts.tokens / (end - start),
    }
    row |= setup.reset_reference()
    row |= setup.adapt_entropy_coef(row, params.loss.entropy_coef)
    return row | setup.adapt_kl_coef(row, len(batch.lengths_S))


def evaluate(setup: RlSetup, dev: Sequence[Problem]) -> dict[str, float]:
    """Accuracy and length on the dev problems and on rl.eval_benchmarks where it is this step's turn.

    With the averaged weights if there are any. A sampler with weights of its own is left with the evaluated ones.
    """
    params, collector, run, start = setup.params, setup.collector, setup.run, time.perf_counter()
    due = {"dev": (dev, params.dev.samples)} if dev and setup.is_due(params.dev.every) else {}
    for benchmark in params.eval_benchmarks:
        if (problems := setup.benchmarks.get(benchmark.name)) and setup.is_due(benchmark.every):
            due[eval_name(benchmark.name)] = (problems, benchmark.samples)
    if not due:
        return {}
    row: dict[str, float] = {}
    with setup.policy.with_evaluated_weights():
        setup.sync()
        with setup.sync.while_sampling():
            for name, (asked, samples) in due.items():
                row |= dev_figures(
                    collector.sampler, asked, collector.reward, params, run.ranks, run.seed, name, samples
                )
    row["time/eval"] = time.perf_counter() - start
    setup.keep_dev_accuracy(row)
    return row


def log_step(setup: RlSetup, row: dict[str, float]) -> None:
    """Write the step's row, and judge it.

    Raises:
        UserError: health ends the run, or the sampler's log-probs are too far from the trainer's.
    """
    step = setup.state.step
    setup.log.write(step, row)
    setup.log.check_health(step, row)
    setup.log.check_mismatch(step, row, setup.collector.sampler.engine.rollout)
