"""Reinforcement learning by TRL's GRPOTrainer (rl.engine: trl).

mathrl gives it the problems in its own order, its prompts, its reward and its schedule of the learning rate, evaluates
on dev, decides when to write a checkpoint and writes the metrics under the field's names. TRL samples, computes the
loss and its gradient, and writes the checkpoints.

TRL's rollouts, graded by mathrl's reward and measured under mathrl's names.

Shapes: P groups (prompts) of G responses.
"""

# First: it imports accelerate before transformers.
from mathrl.engines.trl_packages import Dataset, GRPOConfig, PrinterCallback

# isort: split
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mathrl.core.types import Completion, Graded, Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.engines.prompt_texts import PromptTexts, ordered_problems
from mathrl.engines.trl_arguments import grpo_arguments, updates_per_step
from mathrl.engines.trl_checkpoints import latest_checkpoint
from mathrl.engines.trl_trainer import ScheduledGRPOTrainer, StepEnds, load_for_trl, train_steps
from mathrl.learners.distributed import Ranks
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.lora import add_lora, merged_weights
from mathrl.params import Params
from mathrl.params.train import Rl
from mathrl.rewards.cascade import merged_counters
from mathrl.rewards.compose import RewardFunction, build_reward
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.engine import canary_tolerance
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.collect import dev_figures
from mathrl.trainers.rollouts import metrics_by_source, rollout_groups, rollout_metrics
from mathrl.trainers.training_run import RlInputs, RlResult, TrainedModel


def train(inputs: RlInputs) -> TrainedModel:
    """Train the model of a folder; resumes from TRL's last whole checkpoint in the run's state.

    Raises:
        UserError: no prompt fits or TRL reads one as other tokens, an update is not finite, or health ends it.
        Stopped: after a signal, once the checkpoint is written.
    """
    params, run, start, problems, dev = inputs.params, inputs.run, inputs.start, inputs.problems, inputs.dev
    inputs.resolved(
        params.rollout.model_copy(update={"engine": "torch"}), params.rl.model_copy(update={"importance": None})
    )
    rl, ranks, on_cpu = params.rl, run.ranks, run.ranks.device.type == "cpu"
    tokenizer = load_tokenizer(start, params.model)
    check_prompts([*problems, *dev], params.prompt, tokenizer)
    copy = load_model(start, params.model, ranks.device)
    tolerance = canary_tolerance(params.rollout, params.model, params.model.precision)
    engine = CopyEngine(copy, tokenizer, params.rollout, tolerance)
    sampler = Sampler(engine, tokenizer, params.prompt, inputs.few_shot)
    prompts = [sampler.prompt_tokens(problem) for problem in problems]
    reward = build_reward(params.reward)
    rollouts = GradedRollouts(sampler, engine.ends, problems, prompts, reward, rl, ranks)

    network = load_for_trl(start, params.model, tokenizer)
    if rl.lora is not None:
        add_lora(network, rl.lora, params.run.seed)
    arguments = grpo_arguments(params, world=ranks.world, on_cpu=on_cpu, longest=stage_longest(params, "rl"))
    trainer = ScheduledGRPOTrainer(
        model=network,
        reward_funcs=rollouts.overall,
        args=GRPOConfig(output_dir=str(run.state), **arguments),
        train_dataset=_rows(sampler, problems, prompts, params),
        processing_class=tokenizer,
    )
    trainer.schedule = rl.optimizer
    trainer.remove_callback(PrinterCallback)
    saved = latest_checkpoint(run.state, ranks)
    accuracy: float | None = saved.values["dev_accuracy"] if saved else None
    if saved:
        rollouts.sampled, rollouts.trained = saved.values["sampled_tokens"], saved.values["trained_tokens"]

    def evaluate(step: int) -> dict[str, float]:
        nonlocal accuracy
        if not dev or not (step == rl.steps or (rl.dev.every and step % rl.dev.every == 0)):
            return {}
        engine.sync(merged_weights(network))
        figures = dev_figures(sampler, dev, reward, rl, ranks, run.seed)
        accuracy = figures.get("dev/accuracy", accuracy)
        return figures

    steps = StepEnds(
        "rl",
        count=rl.steps,
        updates=updates_per_step(rl),
        checkpoint_every=rl.checkpoint_every,
        lr=rl.optimizer.lr,
        loss_name="actor_loss",
        figures=lambda step, seconds: rollouts.metrics(),
        evaluate=evaluate,
        values=lambda latest: {
            "dev_accuracy": accuracy,
            "sampled_tokens": rollouts.sampled,
            "trained_tokens": rollouts.trained,
        },
    )
    train_steps(trainer, steps, saved, {}, run)
    result = RlResult(rl.steps, rollouts.sampled, rollouts.trained, accuracy, rl.steps)
    return TrainedModel(network, tokenizer, result)


def _rows(
    sampler: Sampler, problems: Sequence[Problem], prompts: Sequence[Sequence[int] | None], params: Params
) -> Dataset:
    """A row per prompt of the whole run, in mathrl's order, so that TRL goes through them once.

    Raises:
        UserError: no prompt fits, or TRL would read one as other tokens.
    """
    taken = ordered_problems(problems, prompts, params)
    texts = PromptTexts(sampler, "TRL", adds_start=True)
    text_of = {number: texts.text(problems[number], prompts[number] or ()) for number in sorted(set(taken))}
    return Dataset.from_dict({"prompt": [text_of[number] for number in taken], "problem": taken})


@dataclass
class GradedRollouts:
    """One of TRL's reward functions, which keeps what it graded until the step's metrics are read.

    `ends` are the tokens that end a response. `sampled` and `trained` count the run's tokens, at every rank all ranks'.
    """

    sampler: Sampler
    ends: Sequence[int]
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[int] | None]
    reward: RewardFunction
    params: Rl
    ranks: Ranks
    sampled: int = 0
    trained: int = 0
    graded: list[tuple[int, Graded]] = field(default_factory=list)
    seconds: float = 0.0

    def overall(
        self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]], problem: Sequence[int], **_: Any
    ) -> list[float]:
        """The reward of each completion; `problem` are the numbers of the problems, a column of the data set."""
        start = time.perf_counter()
        pairs = [
            (self.problems[number], self._completion(text, ids))
            for number, text, ids in zip(problem, completions, completion_ids, strict=True)
        ]
        graded = self.sampler.grade(pairs, self.params.max_tokens, self.reward)
        self.graded += zip(map(int, problem), graded, strict=True)
        self.seconds += time.perf_counter() - start
        return [response.reward for response in graded]

    def _completion(self, text: str, ids: Sequence[int]) -> Completion:
        """Without log-probs: TRL does not keep those that it sampled with."""
        ended = ids[-1] in self.ends
        tokens, none = np.asarray(ids, np.int32), np.zeros(0, np.float32)
        return Completion(tokens=tokens, logprobs=none, text=text, finish_reason="stop" if ended else "length")

    def metrics(self) -> dict[str, float]:
        """The figures of the rollouts since the last call, of all ranks. Called at every rank."""
        shares: list[tuple[list[tuple[int, Graded]], Mapping[str, float]]]
        shares = self.ranks.gather((self.graded, self.reward.counters()))
        seconds, self.graded, self.seconds = self.seconds, [], 0.0
        graded = [pair for share, _ in shares for pair in share]
        size = self.params.group_size
        groups = [graded[first : first + size] for first in range(0, len(graded), size)]
        assert all(len({number for number, _ in group}) == 1 for group in groups), "a group of one problem"
        numbers = [group[0][0] for group in groups]
        rollouts = rollout_groups(
            numbers, [self.prompts[n] for n in numbers], [[response for _, response in group] for group in groups]
        )
        sampled = sum(group.sampled_tokens for group in rollouts)
        trained = self.params.epochs * (sampled + sum(len(group.prompt) * size for group in rollouts))
        self.sampled, self.trained = self.sampled + sampled, self.trained + trained
        return {
            **rollout_metrics(rollouts, rollouts),
            **metrics_by_source(rollouts, self.problems),
            **merged_counters([counters for _, counters in shares]),
            "trained_tokens": trained,
            "time/reward": seconds,
        }
