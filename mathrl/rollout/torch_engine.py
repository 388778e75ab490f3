"""The in-process torch engine. (first form: replaced by the fast one)"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mathrl.core.nouns import Completion
from mathrl.params.run import Rollout
from mathrl.rollout.engine import Sampling


class TorchEngine:
    """Samples from a Hugging Face model in this process."""

    def __init__(self, model: Any, tokenizer: Any, rollout: Rollout) -> None:
        self.model, self.tokenizer, self.rollout = model, tokenizer, rollout

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Completion]]:
        generator = torch.Generator().manual_seed(seed)
        out = []
        for prompt in prompts:
            group = []
            for _ in range(sampling.samples):
                tokens: list[int] = []
                logprobs: list[float] = []
                while len(tokens) < sampling.max_tokens and self.tokenizer.eos_token_id not in tokens:
                    ids = torch.tensor([[*prompt, *tokens]])
                    logits = self.model(input_ids=ids).logits[0, -1].float()
                    scores = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
                    token = int(
                        torch.multinomial(scores.exp(), 1, generator=generator)
                        if sampling.temperature
                        else scores.argmax()
                    )
                    tokens.append(token)
                    logprobs.append(float(scores[token]))
                ended = tokens[-1] == self.tokenizer.eos_token_id
                text = self.tokenizer.decode(tokens, skip_special_tokens=True)
                group.append(Completion(tuple(tokens), tuple(logprobs), text, "stop" if ended else "length"))
                if on_progress:
                    on_progress(1)
            out.append(group)
        return out
