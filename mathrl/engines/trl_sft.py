"""Supervised fine-tuning by TRL's SFTTrainer (sft.engine: trl).

mathrl gives it the demonstrations as token ids, step by step those of its own loop, and its schedule of the learning
rate, measures the loss on dev, decides when to write a checkpoint and writes the metrics under the field's names. TRL
computes the loss of the responses' tokens and its gradient, moves the weights, and writes the checkpoints.
"""

# First: it imports accelerate before transformers.
from mathrl.engines.trl_packages import DataCollatorForLanguageModeling, Dataset, PrinterCallback, SFTConfig

# isort: split
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mathrl.engines.trl_arguments import sft_arguments
from mathrl.engines.trl_batches import Collator, plan_batches
from mathrl.engines.trl_checkpoints import latest_checkpoint
from mathrl.engines.trl_trainer import ScheduledSFTTrainer, StepEnds, load_for_trl, train_steps
from mathrl.learners.micro_batches import TokenBudget
from mathrl.models.dropout import disable_dropout
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.lora import add_lora, merged_weights
from mathrl.models.packing import Group
from mathrl.models.weights import copy_weights
from mathrl.params import Params
from mathrl.trainers.sft import negative_log_likelihood, sft_objective
from mathrl.trainers.supervised import evaluate
from mathrl.trainers.training_run import TrainingRun


def train_sft_with_trl(
    start: Path, demonstrations: Sequence[Group], dev: Sequence[Group], params: Params, run: TrainingRun
) -> tuple[Any, dict[str, float]]:
    """Train the model of the folder `start`; resumes from TRL's last whole checkpoint in `run.state`.

    Returns the model and the last figures: loss, dev/loss, tokens_seen, …

    Raises:
        UserError: an update is not finite, or health ends the run.
        Stopped: after a signal, once the checkpoint is written.
    """
    sft, ranks, on_cpu = params.sft, run.ranks, run.ranks.device.type == "cpu"
    copy = load_model(start, params.model, ranks.device)
    objective = sft_objective(demonstrations, dev, partial(negative_log_likelihood, copy), sft)
    plan = plan_batches(objective, sft.steps, params.run.seed, ranks.world, sft.tokens_per_microbatch)
    tokenizer = load_tokenizer(start, params.model)
    network = load_for_trl(start, params.model, tokenizer)
    if not sft.dropout:
        disable_dropout(network)
    if sft.lora is not None:
        add_lora(network, sft.lora, params.run.seed)
    arguments = sft_arguments(params, world=ranks.world, on_cpu=on_cpu, accumulation=plan.accumulation)
    trainer = ScheduledSFTTrainer(
        model=network,
        args=SFTConfig(output_dir=str(run.state), **arguments),
        data_collator=Collator(demonstrations, DataCollatorForLanguageModeling(tokenizer.pad_token_id or 0)),
        train_dataset=Dataset.from_dict(plan.rows),
        processing_class=tokenizer,
    )
    trainer.schedule = sft.optimizer
    trainer.model_accepts_loss_kwargs = True  # so that TRL divides by the tokens of the global batch
    trainer.remove_callback(PrinterCallback)
    saved = latest_checkpoint(run.state, ranks)

    def figures(step: int, seconds: float) -> dict[str, float]:
        before = plan.tokens_seen[step - 2] if step > 1 else 0
        seen = plan.tokens_seen[step - 1]
        return {"tokens_seen": float(seen), "throughput/tokens_per_second": (seen - before) / seconds}

    def dev_loss(step: int) -> dict[str, float]:
        if not dev or not (step == sft.steps or (sft.eval_every and step % sft.eval_every == 0)):
            return {}
        copy_weights(copy, merged_weights(network))
        held_out = evaluate(copy, objective, TokenBudget(ranks, sft.tokens_per_microbatch, "sft"))
        return {f"dev/{figure}": value for figure, value in held_out.items()}

    steps = StepEnds(
        "sft",
        count=sft.steps,
        updates=1,
        checkpoint_every=sft.checkpoint_every,
        lr=sft.optimizer.lr,
        loss_name="loss",
        figures=figures,
        evaluate=dev_loss,
        values=lambda latest: {"figures": latest},
    )
    return network, train_steps(trainer, steps, saved, saved.values["figures"] if saved else {}, run)
