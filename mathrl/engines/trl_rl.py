"""Reinforcement learning by TRL's GRPOTrainer (rl.engine: trl).

mathrl gives it the problems in its own order, its prompts, its reward and its schedule of the learning rate, evaluates
on dev, decides when to write a checkpoint and writes the metrics under the field's names. TRL samples, computes the
loss and its gradient, and writes the checkpoints.
"""

# First: it imports accelerate before transformers.
from mathrl.engines.trl_packages import Dataset, GRPOConfig, PrinterCallback

# isort: split
from collections.abc import Sequence

from mathrl.core.types import Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.engines.prompt_texts import PromptTexts, ordered_problems
from mathrl.engines.trl_arguments import grpo_arguments, updates_per_step
from mathrl.engines.trl_checkpoints import latest_checkpoint
from mathrl.engines.trl_rollouts import GradedRollouts
from mathrl.engines.trl_trainer import ScheduledGRPOTrainer, StepEnds, load_for_trl, train_steps
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.lora import add_lora, merged_weights
from mathrl.params import Params
from mathrl.rewards.compose import build_reward
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.engine import canary_tolerance
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.collect import dev_figures
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
