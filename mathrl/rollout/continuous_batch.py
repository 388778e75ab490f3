"""A batch of the torch engine that sequences join and leave while the others go on.

Shapes: B sequences of the batch; N new ones of P prompts; L tokens of a response; V tokens in the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathrl.core.types import FinishReason
from mathrl.models.decode import PackedDecoder
from mathrl.models.logprobs import make_decoder
from mathrl.rollout.torch_engine import REMOVE_AT, TorchEngine, sample_token


@dataclass(frozen=True)
class NewSequences:
    """Sequences with one prompt that join a batch, by their names; `sampled` tokens of the prompt are their own.

    Example: NewSequences(prompt=(7, 10, 5, 14), names=("first", "second"), uniform_NL=torch.rand(2, 64), sampled=0)

    `uniform_NL` are the random numbers of all their tokens, those of the sampled ones among them.
    """

    prompt: Sequence[int]
    names: Sequence[Any]
    uniform_NL: Tensor
    sampled: int = 0


@dataclass(frozen=True)
class SampledPart:
    """What a batch has sampled of a sequence; `reason` is None while it goes on."""

    name: Any
    tokens: list[int]
    logprobs: list[float]
    reason: FinishReason | None


class ContinuousBatch:
    """Every `step` samples a token of each sequence, by weights that stay as they are while the batch lives.

    A token depends on its sequence's own random numbers, and its logits in their last bits on what else is in the
    batch: equal calls give equal bits.
    """

    def __init__(self, engine: TorchEngine, temperature: float, max_tokens: int) -> None:
        self.temperature, self.max_tokens = temperature, max_tokens
        self.decoder = make_decoder(engine.model)
        self.device = engine.model.device
        self.ends = torch.tensor(engine.ends, device=self.device)
        self.names: list[Any] = []
        self.prompts: list[Sequence[int]] = []
        self.tokens_BL = torch.zeros(0, max_tokens, dtype=torch.long, device=self.device)
        self.logprobs_BL, self.uniform_BL = (torch.zeros(0, max_tokens, device=self.device) for _ in range(2))
        # Of each sequence: the number of its tokens when it joined and now, and whether it goes on.
        self.joined_B, self.count_B = (torch.zeros(0, dtype=torch.long, device=self.device) for _ in range(2))
        self.going_B = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.going = self.passes = 0  # sequences that go on; forward passes so far
        self.left = max_tokens  # steps after which an ended sequence would outgrow `max_tokens`

    @torch.no_grad()
    def step(self, new: Sequence[NewSequences]) -> list[SampledPart]:
        """Sample the next token of all sequences and the first of the new ones; those that end with it.

        Sequences that have ended leave the batch when others join, or when they are `REMOVE_AT` of it.
        """
        if not self.going and not new:
            return []
        logits_BV = self.decoder.step(self._last_tokens()) if self.names else None
        self.passes += bool(self.names) + bool(new)
        if new:
            logits_BV = self._join(new, logits_BV)
        elif logits_BV is not None and (len(self.names) - self.going >= REMOVE_AT * len(self.names) or self.left <= 0):
            rows = self.going_B.nonzero()[:, 0]
            self.decoder.keep(rows)
            self._keep(rows)
            logits_BV = logits_BV.index_select(0, rows)
        assert logits_BV is not None
        return self._sample(logits_BV)

    def parts(self) -> list[SampledPart]:
        """What was sampled of the sequences that go on."""
        return [self._part(row, None) for row in self.going_B.nonzero()[:, 0].tolist()]

    def _sample(self, logits_BV: Tensor) -> list[SampledPart]:
        places_B = self.count_B  # below max_tokens: a sequence that has as many leaves before the next pass
        uniform_B = self.uniform_BL[torch.arange(len(self.names), device=self.device), places_B]
        tokens_B, logprobs_B = sample_token(logits_BV, uniform_B, self.temperature, 1.0)
        going = self.going_B.nonzero()[:, 0]
        self.tokens_BL[going, places_B[going]] = tokens_B[going]
        self.logprobs_BL[going, places_B[going]] = logprobs_B[going]
        self.count_B = self.count_B + self.going_B
        stopped_B = torch.isin(tokens_B, self.ends) & self.going_B
        ended_B = stopped_B | (self.going_B & (self.count_B == self.max_tokens))
        self.going_B = self.going_B & ~ended_B
        self.going, self.left = int(self.going_B.sum()), self.left - 1
        if bool(ended_B.any()):
            self.left = min(self.left, self.max_tokens - int(self.count_B[ended_B].max()) - 1)
        stopped = set(stopped_B.nonzero()[:, 0].tolist())
        return [self._part(row, "stop" if row in stopped else "length") for row in ended_B.nonzero()[:, 0].tolist()]

    def _part(self, row: int, reason: FinishReason | None) -> SampledPart:
        places = slice(int(self.joined_B[row]), int(self.count_B[row]))
        tokens, logprobs = self.tokens_BL[row, places].tolist(), self.logprobs_BL[row, places].tolist()
        return SampledPart(self.names[row], tokens, logprobs, reason)

    def _last_tokens(self) -> Tensor:
        rows_B = torch.arange(len(self.names), device=self.device)
        return self.tokens_BL[rows_B, self.count_B - 1]

    def _keep(self, rows: Tensor) -> None:
        self.left = self.max_tokens
        self.names = [self.names[row] for row in rows.tolist()]
        self.prompts = [self.prompts[row] for row in rows.tolist()]
        for name in ("tokens_BL", "logprobs_BL", "uniform_BL", "joined_B", "count_B", "going_B"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def _join(self, new: Sequence[NewSequences], logits_BV: Tensor | None) -> Tensor:
        """Let the new sequences join; the logits of those that stay and theirs."""
        prompt_N = [number for number, sequences in enumerate(new) for _ in sequences.names]
        rows = self.going_B.nonzero()[:, 0]
        self._keep(rows)
        kept = logits_BV.index_select(0, rows) if logits_BV is not None else None
        prompts = [sequences.prompt for sequences in new]
        if isinstance(self.decoder, PackedDecoder):
            joined = self.decoder.join(rows, prompts, torch.tensor(prompt_N, device=self.device), self.max_tokens)
        else:  # it cannot: all sequences are run again
            stayed = [[*prompt, *self._part(row, None).tokens] for row, prompt in enumerate(self.prompts)]
            logits = self.decoder.prefill([*stayed, *(prompts[number] for number in prompt_N)], 1, self.max_tokens)
            kept, joined = logits[: len(stayed)], logits[len(stayed) :]
        self.names += [name for sequences in new for name in sequences.names]
        self.prompts += [prompts[number] for number in prompt_N]
        count, device = len(prompt_N), self.device
        sampled_N = torch.tensor([new[number].sampled for number in prompt_N], device=device)
        uniform_NL = torch.cat([sequences.uniform_NL for sequences in new]).to(device)
        self.tokens_BL = torch.cat([self.tokens_BL, self.tokens_BL.new_zeros(count, self.max_tokens)])
        self.logprobs_BL = torch.cat([self.logprobs_BL, self.logprobs_BL.new_zeros(count, self.max_tokens)])
        self.uniform_BL = torch.cat([self.uniform_BL, uniform_NL])
        self.joined_B, self.count_B = torch.cat([self.joined_B, sampled_N]), torch.cat([self.count_B, sampled_N])
        self.going_B = torch.cat([self.going_B, torch.ones(count, dtype=torch.bool, device=device)])
        return joined if kept is None else torch.cat([kept, joined])
