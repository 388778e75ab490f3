"""The sampler's weights are the trainer's: sent after each update, and checked by the log-probs of a probe.

A sampler that goes on with old weights, or with some old ones (a head, a cached prefix), still gives fluent
text and plausible log-probs; the run only learns less. So nothing is trained on before both agree on a probe.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from mathrl.algorithms.alignment import logprob_alignment
from mathrl.core.errors import UserError
from mathrl.core.nouns import Completion
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.weights import full_weights
from mathrl.rollout.engine import RolloutEngine, Sampling, SyncedEngine
from mathrl.trainers.backend import Backend

PROBES, SAMPLES, TOKENS, SEED = 4, 2, 16, 0


class WeightSync:
    """Sends the model's weights to its sampler and checks that they are in use; called at every process.

    Without an engine that has weights of its own it does nothing.
    """

    def __init__(
        self, engine: RolloutEngine, model: Any, backend: Backend, prompts: Sequence[Sequence[int]],
        temperature: float, max_tokens: int,
    ) -> None:  # fmt: skip
        """The probe is of the longest of `prompts`, which are the most of what a cache could hold."""
        self.engine = engine if isinstance(engine, SyncedEngine) else None
        self.model, self.backend = model, backend
        self.prompts = sorted(prompts, key=len, reverse=True)[:PROBES]
        self.sampling = Sampling(SAMPLES, temperature, min(TOKENS, max_tokens))

    def __call__(self) -> dict[str, float]:
        """Figures about it, for the metrics.

        Raises:
            UserError: sampler and trainer differ by more than the engine's tolerance.
        """
        if self.engine is None:
            return {}
        start, engine, told = time.perf_counter(), self.engine, ""
        weights = full_weights(self.model)
        if engine.shared and self.backend.rank:
            for _ in weights:  # each is gathered from all processes, this one too
                pass
        else:
            told = engine.sync(weights)
        if engine.shared:
            engine.follow(str(self.backend.gather(told)[0]))
        figures = self._canary(engine)
        return figures | {"time/sync": time.perf_counter() - start}

    def sleep(self) -> None:
        """Until the next sync nothing is sampled."""
        if self.engine is not None:
            self.engine.sleep()

    def _canary(self, engine: SyncedEngine) -> dict[str, float]:
        heard: list[tuple[str, list[list[Completion]]]] = []
        if not (engine.shared and self.backend.rank):
            heard = engine.probe(self.prompts, self.sampling, SEED)
        if engine.shared:
            heard = self.backend.gather(heard)[0]
        own = [(name, *self._differences(completions)) for name, completions in heard]
        everyone = [each for share in self.backend.gather(own) for each in share]
        for name, mean, largest, _ in everyone:
            if not mean <= engine.tolerance:  # a NaN too
                raise UserError(
                    f"after the weights were sent, the log-probs of {name} differ from the trainer's by "
                    f"{mean:.2g} on average over a probe (at most {largest:.2g}), more than "
                    f"{engine.tolerance:g}: it does not run these weights, and nothing was trained on its "
                    "responses; if only the precisions differ, raise rollout.canary_tolerance"
                )
        return {
            "rollout/canary_gap": max(mean for _, mean, _, _ in everyone),
            "rollout/canary_alignment": max(ratio for *_, ratio in everyone),
        }

    @torch.no_grad()
    def _differences(self, completions: Sequence[Sequence[Completion]]) -> tuple[float, float, float]:
        """Mean and largest difference of a token's log-prob, in nats; mean of exp |difference|, as T3."""
        groups = [
            Group(tuple(prompt), tuple(each.tokens for each in row))
            for prompt, row in zip(self.prompts, completions, strict=True)
        ]
        training = self.model.training
        self.model.eval()
        trainer_N = response_logprobs(self.model, groups, self.sampling.temperature)[0].float().cpu()
        self.model.train(training)
        sampler_N = torch.tensor([value for row in completions for each in row for value in each.logprobs])
        lengths_S = torch.tensor([len(each.tokens) for row in completions for each in row])
        gaps_N = (trainer_N - sampler_N).abs()
        ratio = float(logprob_alignment(trainer_N, sampler_N, lengths_S).mean())
        return float(gaps_N.mean()), float(gaps_N.max()), ratio
