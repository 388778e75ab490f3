"""The demonstrations of each SFT step as TRL's trainer takes them: a row of its data set per micro-batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl.core.hashing import derive_seed
from mathrl.models.packing import Group
from mathrl.trainers.supervised import Objective, Stream

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
