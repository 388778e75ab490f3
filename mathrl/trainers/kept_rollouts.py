"""Rollouts that a run keeps for `mathrl runs rollouts`: which of them, and their rows.

Shapes: G responses of a group; N tokens of all kept responses of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mathrl.core.files import encodable
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.params.responses import KeepRollouts
from mathrl.trainers.batch import Batch
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.training_run import TrainingRun

if TYPE_CHECKING:
    from mathrl.rollout.rollout_files import RolloutFolder

REPEATS = 0.2  # share of a response's 16-grams that occurred before in it
Floats = npt.NDArray[np.float32]
# Log-probs of groups' tokens by the policy as it is now, [N].
Score = Callable[[Sequence[RolloutGroup]], Tensor]


@dataclass(frozen=True)
class KeptRollouts:
    """What a run keeps, and where: `folder` is there at rank 0 alone. All ranks choose alike."""

    params: KeepRollouts
    problems: Sequence[Problem]
    tokenizer: Any
    seed: int
    folder: RolloutFolder | None
    _pieces: dict[int, str] = field(default_factory=dict)

    def keep(self, step: int, sampled: Sequence[RolloutGroup], batch: Batch, score: Score) -> None:
        """Keep the chosen responses of a step, after its updates.

        The log-probs of the updated policy need a forward pass of the chosen groups that were trained on; nothing of
        the run depends on them.
        """
        chosen = [(group, self.choose(group)) for group in sampled]
        kept = {id(group) for group, numbers in chosen if numbers}
        numbers = [number for number, group in enumerate(batch.groups) if id(group) in kept]
        values: dict[int, tuple[list[Floats], list[Floats]]] = {}
        if numbers:
            part = batch.part(numbers)
            ratios_N = (score(part.groups) - part.old_N).exp()
            advantages, ratios = (of_responses(part, values_N.numpy()) for values_N in (part.advantages_N, ratios_N))
            for number, group in enumerate(part.groups):
                values[id(group)] = advantages[number], ratios[number]
        if self.folder is not None:
            rows = [row for group, numbers in chosen for row in self._rows(step, group, numbers, values.get(id(group)))]
            self.folder.write(step, rows)

    def choose(self, group: RolloutGroup) -> list[int]:
        """The numbers of the group's responses that are kept."""
        everyone = list(range(len(group.responses)))
        if self.params.which == "share":
            place = derive_seed(self.seed, "kept", self.problems[group.problem].id) / 2**63
            return everyone if place < self.params.share else []
        if self.params.which == "odd":
            return [number for number in everyone if odd_reasons(group, number)]
        return everyone

    def _rows(
        self,
        step: int,
        group: RolloutGroup,
        numbers: Sequence[int],
        values: tuple[Sequence[Floats], Sequence[Floats]] | None,
    ) -> Iterator[dict[str, Any]]:
        problem = self.problems[group.problem]
        for number in numbers:
            graded, tokens = group.graded[number], group.responses[number].tolist()
            calls = graded.completion.calls
            yield {
                "step": step,
                "problem": encodable(problem.id),
                "question": encodable(problem.question),
                "answers": [encodable(answer) for answer in problem.answers],
                "source": encodable(problem.source),
                "level": problem.level,
                "response": number,
                "text": encodable(graded.completion.text),
                "correct": group.correct[number],
                "extracted": graded.extracted and encodable(graded.extracted),
                "rule": graded.rule,
                "reward": group.rewards[number],
                "parts": sorted(group.parts[number].items()),
                "length": group.lengths[number],
                "truncated": group.truncated[number],
                "repeated": group.repeated[number],
                "disagrees": graded.disagrees,
                "odd": odd_reasons(group, number),
                "trained": values is not None,
                "calls": [
                    {"start": call.start, "end": call.end, "status": call.status}
                    | {"code": encodable(call.code), "output": encodable(call.output)}
                    for call in calls
                ],
                "tokens": tokens,
                "pieces": [self.piece(token) for token in tokens],
                "logprobs": among_all(group, number, group.logprobs[number]),
                "advantages": values and values[0][number],
                "ratios": values and values[1][number],
            }

    def piece(self, token: int) -> str:
        """The text of a token, with the space that a tokenizer like Llama's leaves out at the start of a text."""
        if token not in self._pieces:
            text = self.tokenizer.decode([token])
            spaced = str(self.tokenizer.convert_ids_to_tokens(token)).startswith("▁") and not text.startswith(" ")
            self._pieces[token] = encodable(f" {text}" if spaced else text)
        return self._pieces[token]


def of_responses(batch: Batch, values_N: Floats) -> list[list[Floats]]:
    """The values of each group's responses, one per token: NaN for those of tools."""
    split = iter(np.split(values_N, batch.lengths_S.cumsum(0).tolist()[:-1]))
    return [[among_all(group, number, next(split)) for number in range(len(group.responses))] for group in batch.groups]


def among_all(group: RolloutGroup, number: int, values: Floats) -> Floats:
    """Values of the sampled tokens of a response among all its tokens, NaN for the others."""
    if not group.sampled:
        return values
    whole = np.full(len(group.responses[number]), np.nan, np.float32)
    whole[group.sampled[number]] = values
    return whole


def open_kept(
    params: KeepRollouts, problems: Sequence[Problem], tokenizer: Any, run: TrainingRun, resume_after: int | None
) -> KeptRollouts | None:
    """What keeps the run's rollouts; None if it keeps none."""
    if params.which == "none" or run.rollouts is None:
        return None
    from mathrl.rollout.rollout_files import (
        RolloutFolder,  # pyarrow, which starts threads: only where rollouts are kept
    )

    folder = RolloutFolder(run.rollouts, resume_after) if run.ranks.rank == 0 else None
    return KeptRollouts(params, problems, tokenizer, run.seed, folder)


def odd_reasons(group: RolloutGroup, number: int) -> list[str]:
    """Why a person would look at this response.

    A reward contradicts the verdict where a wrong response of the group has more than this right one, or a right one
    less than this wrong one.
    """
    graded, correct, reward = group.graded[number], group.correct[number], group.rewards[number]
    alone = len(group.correct) > 2 and list(group.correct).count(correct) == 1
    others = [r for r, c in zip(group.rewards, group.correct, strict=True) if c != correct]
    reasons = {
        "truncated": group.truncated[number],
        "repeats itself": group.repeated[number] > REPEATS,
        "no answer": graded.extracted is None and not group.truncated[number],
        "only right one": alone and correct,
        "only wrong one": alone and not correct,
        "reward against verdict": any(other > reward if correct else other < reward for other in others),
        "graders disagree": bool(graded.disagrees),
        "call failed": any(call.status != "ok" for call in graded.completion.calls),
    }
    return [name for name, holds in reasons.items() if holds]
