"""Supervised fine-tuning by TRL's SFTTrainer (sft.engine: trl).

mathrl gives it the demonstrations as token ids, step by step those of its own loop, and its schedule of the learning
rate, measures the loss on dev, decides when to write a checkpoint and writes the metrics under the field's names. TRL
computes the loss of the responses' tokens and its gradient, moves the weights, and writes the checkpoints.

The demonstrations of each SFT step as TRL's trainer takes them: a row of its data set per micro-batch.
"""

# First: it imports accelerate before transformers.
from mathrl.engines.trl_packages import DataCollatorForLanguageModeling, Dataset, PrinterCallback, SFTConfig

# isort: split
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mathrl.core.hashing import derive_seed
from mathrl.engines.trl_arguments import sft_arguments
from mathrl.engines.trl_trainer import ScheduledSFTTrainer, StepEnds, latest_checkpoint, load_for_trl, train_steps
from mathrl.learners.micro_batches import TokenBudget
from mathrl.models.dropout import disable_dropout
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.lora import add_lora, merged_weights
from mathrl.models.packing import Group
from mathrl.models.weights import copy_weights
from mathrl.params import Params
from mathrl.trainers.sft import negative_log_likelihood, sft_objective
from mathrl.trainers.supervised import Objective, Stream, evaluate
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


ROW = "demonstrations"
NOT_LEARNED = -100


@dataclass(frozen=True)
class BatchPlan:
    """The demonstrations of a run by number: micro-batches in the order in which the ranks take them.

    Every step has `accumulation` micro-batches per rank; one without a demonstration adds nothing to the gradient.
    `tokens_seen` counts packed tokens up to the end of each step, as mathrl's own loop does.

    Example: 2 steps on 2 ranks: BatchPlan([[4, 0], [2], [1, 3], []], accumulation=1, tokens_seen=[310, 560])
    """

    micro_batches: list[list[int]]
    accumulation: int
    tokens_seen: list[int]

    @property
    def rows(self) -> dict[str, list[list[int]]]:
        """The columns of TRL's data set."""
        return {ROW: self.micro_batches}


def plan_batches(objective: Objective, steps: int, seed: int, world: int, budget: int) -> BatchPlan:
    """The batches that mathrl's own loop takes, in its order, in padded micro-batches of at most `budget` tokens."""
    stream = Stream(len(objective.items), derive_seed(seed, f"{objective.name} order"))
    numbers = {id(item): number for number, item in enumerate(objective.items)}
    sizes = [sum(map(len, (item.group.prompt, *item.group.responses))) for item in objective.items]
    batches, seen = list[list[int]](), list[int]()
    for _ in range(steps):
        batch = objective.next_batch(stream)
        batches.append([numbers[id(item)] for item in batch])
        seen.append((seen[-1] if seen else 0) + sum(item.group.packed_tokens for item in batch))
    most = max(len(padded_micro_batches(batch, sizes, budget)) for batch in batches)
    accumulation = -(-most // world)
    parts = [padded_micro_batches(batch, sizes, budget, accumulation * world) for batch in batches]
    return BatchPlan([micro for step in parts for micro in step], accumulation, seen)


def padded_micro_batches(batch: Sequence[int], sizes: Sequence[int], budget: int, least: int = 0) -> list[list[int]]:
    """The numbers in `batch`, the largest first, in lists of at most `budget` padded tokens; a larger one stands alone.

    At least `least` lists: the costliest are halved, and empty ones follow once every number stands alone.

    >>> padded_micro_batches([0, 1, 2, 3], sizes=[2, 9, 3, 3], budget=9)
    [[1], [2, 3, 0]]
    >>> padded_micro_batches([0, 1, 2], sizes=[2, 2, 2], budget=9, least=4)
    [[0], [1], [2], []]
    """
    lists: list[list[int]] = []
    for number in sorted(batch, key=lambda number: -sizes[number]):
        if lists and (len(lists[-1]) + 1) * sizes[lists[-1][0]] <= budget:
            lists[-1].append(number)
        else:
            lists.append([number])
    while len(lists) < least:
        place = max(range(len(lists)), key=lambda place: (len(lists[place]) > 1) * len(lists[place]))
        widest = lists[place]
        if len(widest) == 1:
            return lists + [[] for _ in range(least - len(lists))]
        half = -(-len(widest) // 2)
        lists[place : place + 1] = [widest[:half], widest[half:]]
    return lists


class Collator:
    """Rows of the plan as batches, padded by TRL's own collator `pad`: the loss on the responses' own tokens alone."""

    def __init__(self, groups: Sequence[Group], pad: Callable[[list[dict[str, list[int]]]], Any]) -> None:
        self.groups, self.pad = groups, pad

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> Any:
        examples = [example_of(self.groups[number]) for row in rows for number in row[ROW]]
        if not examples:
            shortest = example_of(min(self.groups, key=lambda group: group.packed_tokens))
            examples = [shortest | {"labels": [NOT_LEARNED] * len(shortest["labels"])}]
        return self.pad(examples)


def example_of(group: Group) -> dict[str, list[int]]:
    """A demonstration as TRL's token ids and labels.

    >>> example_of(Group((7, 10), ((5, 9, 2),)))
    {'input_ids': [7, 10, 5, 9, 2], 'labels': [-100, -100, 5, 9, 2]}
    """
    (response,), (learned,) = group.responses, group.masks
    labels = [int(token) if is_learned else NOT_LEARNED for token, is_learned in zip(response, learned, strict=True)]
    return {"input_ids": [*map(int, (*group.prompt, *response))], "labels": [NOT_LEARNED] * len(group.prompt) + labels}
