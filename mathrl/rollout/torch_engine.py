"""The in-process torch engine: the trainer's own model samples, so there are no weights to send.

Shapes: B sequences in the batch; V tokens in the vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mathrl.core.out_of_memory import memory_part
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Completion
from mathrl.models.logprobs import takes_packed
from mathrl.models.packing import rounded_up
from mathrl.params.rollout import Rollout
from mathrl.rollout.decode import Decoder, PackedDecoder, PlainDecoder
from mathrl.rollout.engine import Progress, Sampling, end_tokens
from mathrl.rollout.sample_token import choose

# Finished sequences stay until they are this part of the batch: leaving costs a copy of the cache.
LEAVE_AT = 1 / 8


class TorchEngine:
    """Samples from a Hugging Face model in this process, on its device.

    A prompt is run once for all its samples; finished sequences leave the batch.
    """

    def __init__(self, model: Any, tokenizer: Any, rollout: Rollout) -> None:
        self.model, self.tokenizer, self.rollout = model, tokenizer, rollout
        self.ends = end_tokens(tokenizer, getattr(model, "generation_config", None))

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, on_progress: Progress = None
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`."""
        training = self.model.training
        self.model.eval()
        most = self.rollout.max_sequences
        at_a_time = max(1, most // sampling.samples)
        # Prompts of similar length together: less padding in the cache.
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        out: list[list[Completion]] = [[] for _ in prompts]
        for number, first in enumerate(range(0, len(order), at_a_time)):
            chosen = order[first : first + at_a_time]
            batch_seed = derive_seed(seed, "batch", number)
            with memory_part("key-value cache of the roll-outs", f"lower rollout.max_sequences (now {most})"):
                completions = self._batch([prompts[i] for i in chosen], sampling, batch_seed, on_progress)
            for place, index in enumerate(chosen):
                out[index] = completions[place * sampling.samples : (place + 1) * sampling.samples]
        self.model.train(training)
        return out

    def _batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, on_progress: Progress
    ) -> list[Completion]:
        device, count = self.model.device, len(prompts) * sampling.samples
        decoder: Decoder = PackedDecoder(self.model) if takes_packed(self.model) else PlainDecoder(self.model)
        generator = torch.Generator().manual_seed(seed)
        ends = torch.tensor(self.ends, device=device)
        tokens_BL = torch.full((count, sampling.max_tokens), self.ends[0], dtype=torch.long, device=device)
        logprobs_BL = torch.zeros(count, sampling.max_tokens, device=device)
        lengths_B = torch.full((count,), sampling.max_tokens, device=device)
        ended_B = torch.zeros(count, dtype=torch.bool, device=device)
        rows = torch.arange(count, device=device)  # which of the batch each decoded sequence is
        logits = decoder.prefill(prompts, sampling.samples, sampling.max_tokens)
        for column in range(sampling.max_tokens):
            uniform = torch.rand(count, generator=generator).to(device).index_select(0, rows)
            tokens, logprobs = choose(logits, uniform, sampling.temperature, sampling.top_p)
            tokens_BL[rows, column] = tokens
            logprobs_BL[rows, column] = logprobs
            fresh = torch.isin(tokens, ends) & ~ended_B[rows]
            finished = int(fresh.sum())
            if finished:
                done = rows[fresh]
                ended_B[done] = True
                lengths_B[done] = column + 1
                if on_progress:
                    on_progress(finished)
            waiting = ended_B[rows]
            idle = int(waiting.sum())
            if idle == len(rows) or column + 1 == sampling.max_tokens:
                break
            size = rounded_up(len(rows) - idle)
            if len(rows) - size >= LEAVE_AT * len(rows):
                # Some finished ones stay, so that the batch has one of few sizes.
                staying = torch.argsort(waiting, stable=True)[:size].sort().values
                decoder.keep(staying)
                rows, tokens = rows[staying], tokens[staying]
            logits = decoder.step(tokens)
        if on_progress and not bool(ended_B.all()):
            on_progress(int((~ended_B).sum()))
        return self._completions(tokens_BL, logprobs_BL, lengths_B, ended_B)

    def _completions(
        self, tokens_BL: Tensor, logprobs_BL: Tensor, lengths_B: Tensor, ended_B: Tensor
    ) -> list[Completion]:
        lengths = lengths_B.tolist()
        tokens = [tuple(row[:length]) for row, length in zip(tokens_BL.tolist(), lengths, strict=True)]
        logprobs = [tuple(row[:length]) for row, length in zip(logprobs_BL.tolist(), lengths, strict=True)]
        texts = self.tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True)
        return [
            Completion(tokens=row, logprobs=values, text=text, finish_reason="stop" if ended else "length")
            for row, values, text, ended in zip(tokens, logprobs, texts, ended_B.tolist(), strict=True)
        ]


class CopyEngine(TorchEngine):
    """The same over a copy of the trainer's model, so that it can sample while that one is updated."""

    shared = False

    def __init__(
        self, model: Any, tokenizer: Any, rollout: Rollout, tolerance: float, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model, tokenizer, rollout)
        self.tolerance, self.dtype = tolerance, dtype

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """See `SyncedEngine.sync`."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)  # in place, so that what is cached of it is made anew
        return ""

    def follow(self, told: str) -> None:
        """Each process has its own copy."""

    def probe(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
    ) -> list[tuple[str, list[list[Completion]]]]:
        return [("the sampler's copy", self.generate(prompts, sampling, seed))]

    def sleep(self) -> None:
        """It stays."""
