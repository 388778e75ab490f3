"""The in-process torch engine: the trainer's own model samples, so there are no weights to send.

Shapes: B sequences in the batch; V tokens in the vocabulary.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.core.errors import memory_part
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, FinishReason
from mathrl.models.logprobs import make_decoder
from mathrl.models.shapes import rounded_up
from mathrl.models.tool_messages import end_tokens
from mathrl.models.weights import copy_weights
from mathrl.params.rollout import Rollout
from mathrl.rollout.engine import Ended, Groups, PerProcessEngine, Progress, Prompts, Sampling

# Finished sequences stay in the batch until they are this share of it: removing them copies the cache.
REMOVE_AT = 1 / 8
REASONS: tuple[FinishReason, ...] = ("length", "stop", "stop_string")


class TorchEngine:
    """Samples from a Hugging Face model in this process, on its device.

    A prompt is run once for all its samples; finished sequences leave the batch. What is kept of one that is continued
    later is not run again.
    """

    def __init__(self, model: Any, tokenizer: Any, rollout: Rollout) -> None:
        self.model, self.tokenizer, self.rollout = model, tokenizer, rollout
        self.ends = end_tokens(tokenizer, model.generation_config)

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, sampling: Sampling, seed: int, on_progress: Progress = None, on_end: Ended = None
    ) -> Groups:
        """See `RolloutEngine.generate`."""
        training = self.model.training
        self.model.eval()
        max_sequences = self.rollout.max_sequences
        prompts_per_batch = max(1, max_sequences // sampling.samples)
        # Prompts of similar length together: less padding in the cache.
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        groups: Groups = [[] for _ in prompts]
        for number, first in enumerate(range(0, len(order), prompts_per_batch)):
            indices = order[first : first + prompts_per_batch]
            batch_seed = derive_seed(seed, "batch", number)
            with memory_part("key-value cache of the rollouts", f"lower rollout.max_sequences (now {max_sequences})"):
                completions = self._batch(prompts, indices, sampling, batch_seed, on_progress, on_end)
            for place, index in enumerate(indices):
                groups[index] = completions[place * sampling.samples : (place + 1) * sampling.samples]
        self.model.train(training)
        return groups

    def _batch(
        self,
        prompts: Prompts,
        indices: Sequence[int],
        sampling: Sampling,
        seed: int,
        on_progress: Progress,
        on_end: Ended,
    ) -> list[Completion]:
        """The completions of the prompts with these numbers."""
        device, count, samples = self.model.device, len(indices) * sampling.samples, sampling.samples
        stops = StopStrings(sampling.stop, self.tokenizer) if sampling.stop else None
        limits_B = torch.tensor([sampling.limit(index) for index in indices for _ in range(samples)], device=device)
        decoder = make_decoder(self.model)
        generator = torch.Generator().manual_seed(seed)
        ends = torch.tensor(self.ends, device=device)
        tokens_BL = torch.full((count, sampling.max_tokens), self.ends[0], device=device)
        logprobs_BL = torch.zeros(count, sampling.max_tokens, device=device)
        lengths_B = torch.full((count,), sampling.max_tokens, device=device)
        reasons_B = torch.zeros(count, dtype=torch.long, device=device)  # places in REASONS
        ended_B = torch.zeros(count, dtype=torch.bool, device=device)
        rows = torch.arange(count, device=device)  # the place in the batch of each sequence still decoded
        kept = [sampling.kept[index] for index in indices] if sampling.kept else []
        logits = decoder.prefill([prompts[index] for index in indices], samples, sampling.max_tokens, kept)
        for column in range(sampling.max_tokens):
            uniform = torch.rand(count, generator=generator).to(device).index_select(0, rows)
            tokens, logprobs = sample_token(logits, uniform, sampling.temperature, sampling.top_p)
            tokens_BL[rows, column] = tokens
            logprobs_BL[rows, column] = logprobs
            going = ~ended_B[rows]
            newly_ended = torch.isin(tokens, ends) & going
            reasons_B[rows[newly_ended]] = 1
            if stops is not None:
                stopped_rows = stops.rows_at_stop(tokens_BL, rows[going & ~newly_ended], column)
                reasons_B[stopped_rows] = 2
                newly_ended = newly_ended | torch.isin(rows, stopped_rows)
            if sampling.limits:
                newly_ended = newly_ended | ((limits_B[rows] == column + 1) & going)
            ended_count = int(newly_ended.sum())
            if ended_count:
                ended_rows = rows[newly_ended]
                ended_B[ended_rows] = True
                lengths_B[ended_rows] = column + 1
                if on_end:
                    places = newly_ended.nonzero()[:, 0].tolist()
                    for row, place in zip(ended_rows.tolist(), places, strict=True):
                        tokens_L = tokens_BL[row, : column + 1].tolist()
                        reason, keep = REASONS[int(reasons_B[row])], partial(decoder.keys_of_row, place)
                        on_end(indices[row // samples], row % samples, tokens_L, reason, keep)
                if on_progress:
                    on_progress(ended_count)
            finished = ended_B[rows]
            finished_count = int(finished.sum())
            if finished_count == len(rows) or column + 1 == sampling.max_tokens:
                break
            size = rounded_up(len(rows) - finished_count)
            if len(rows) - size >= REMOVE_AT * len(rows):
                # Some finished sequences stay, so that the batch has one of few sizes.
                staying = torch.cat([(~finished).nonzero(), finished.nonzero()])[:size, 0].sort().values
                decoder.keep(staying)
                rows, tokens = rows[staying], tokens[staying]
            logits = decoder.step(tokens)
        if on_progress:
            on_progress(int((~ended_B).sum()))
        return self._completions(tokens_BL, logprobs_BL, lengths_B, reasons_B)

    def _completions(
        self, tokens_BL: Tensor, logprobs_BL: Tensor, lengths_B: Tensor, reasons_B: Tensor
    ) -> list[Completion]:
        real_BL = torch.arange(tokens_BL.shape[1], device=lengths_B.device) < lengths_B[:, None]
        ends = lengths_B.cumsum(0)[:-1].cpu().numpy()
        tokens, logprobs = (
            np.split(values.cpu().numpy(), ends) for values in (tokens_BL[real_BL].int(), logprobs_BL[real_BL])
        )
        texts = self.tokenizer.batch_decode([row.tolist() for row in tokens], skip_special_tokens=True)
        return [
            Completion(tokens=row, logprobs=values, text=text, finish_reason=REASONS[reason])
            for row, values, text, reason in zip(tokens, logprobs, texts, reasons_B.tolist(), strict=True)
        ]


class CopyEngine(TorchEngine, PerProcessEngine):
    """A `TorchEngine` over a copy of the trainer's model, which samples while the trainer's is updated."""

    label = "the sampler's copy"

    def __init__(
        self, model: Any, tokenizer: Any, rollout: Rollout, tolerance: float, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model, tokenizer, rollout)
        self.tolerance, self.dtype = tolerance, dtype

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """See `SyncedEngine.sync`."""
        copy_weights(self.model, weights)
        return ""

    def sleep(self) -> None:
        """Nothing to release: the copy is needed for the next step."""


def sample_token(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Sample a token per row by inverting the distribution function at `uniform_B`; its log-prob too.

    A token depends on its own logits and its own random number alone, whatever else is in the batch.
    The log-probs are of softmax(logits / temperature), renormalised over the nucleus when top_p < 1. With
    temperature 0 the likeliest token is taken; its log-prob is that of softmax(logits).

    Returns:
        tokens_B (int64) and logprobs_B (float32).
    """
    logits_BV = logits_BV.float()
    if temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        return tokens_B, logits_BV.log_softmax(-1).gather(1, tokens_B[:, None])[:, 0]
    probabilities_BV = torch.softmax(logits_BV / temperature, dim=-1)
    if top_p < 1:
        probabilities_BV = nucleus(probabilities_BV, top_p)
    below_BV = probabilities_BV.cumsum(-1)
    # Just under the total, so that rounding never reaches a token of probability zero behind the last one.
    target_B1 = (uniform_B * (1 - 1e-6))[:, None] * below_BV[:, -1:]
    tokens_B1 = torch.searchsorted(below_BV, target_B1, right=True).clamp_(max=logits_BV.shape[-1] - 1)
    return tokens_B1[:, 0], probabilities_BV.gather(1, tokens_B1)[:, 0].log()


def nucleus(probabilities_BV: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least top_p; renormalise."""
    ordered_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.cumsum(-1) - ordered_BV
    ordered_BV = ordered_BV.masked_fill(before_BV >= top_p, 0.0)
    kept_BV = torch.zeros_like(probabilities_BV).scatter_(-1, order_BV, ordered_BV)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


class StopStrings:
    """Finds the sequences whose newest token completes one of `strings`.

    Only tokens that spell the last character of a string can complete it; the others are not decoded.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        self.strings, self.tokenizer = strings, tokenizer
        self.longest = max(map(len, strings))
        lasts = {string[-1] for string in strings}
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
        self.closing = torch.tensor([number for number, piece in enumerate(pieces) if lasts & set(piece)])

    def rows_at_stop(self, tokens_BL: Tensor, rows_R: Tensor, column: int) -> Tensor:
        """Those of the rows whose token in `column` completes a string."""
        closing_R = torch.isin(tokens_BL[rows_R, column], self.closing.to(tokens_BL.device))
        first = max(0, column + 1 - self.longest)  # a token has a character of the string or more
        candidates = rows_R[closing_R]
        if not len(candidates):
            return candidates
        texts = self.tokenizer.batch_decode(tokens_BL[candidates, first : column + 1].tolist())
        ends_here = [any(string in text for string in self.strings) for text in texts]
        return candidates[torch.tensor(ends_here, dtype=torch.bool, device=candidates.device)]
