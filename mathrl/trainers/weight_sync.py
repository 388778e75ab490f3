"""The sampler's weights are the trainer's: sent after each update, and checked by the log-probs of a probe.

A sampler that goes on with old weights, or with some old ones (a head, a cached prefix), still gives fluent
text and plausible log-probs; the run only learns less. So nothing is trained on before both agree on a probe.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from mathrl.algorithms.alignment import logprob_alignment
from mathrl.core.errors import UserError
from mathrl.core.types import Completion
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.weights import EMBEDDING, HEAD
from mathrl.rollout.engine import RolloutEngine, Sampling, SyncedEngine

PROBES, SAMPLES, TOKENS, SEED = 4, 2, 16, 0
# In bfloat16 a small step moves log-probs by less than the precisions do, but not by nothing: a sampler whose
# every log-prob stays the same bits runs old weights if so large a share of the matrices changed, and so many
# of the tokens are less than certain (of a certain one the log-prob stays 0).
CHANGED, TELLING, CERTAIN = 0.05, 8, -1e-3


class WeightSync:
    """Sends the model's weights to its sampler and checks that they are in use; called at every process.

    Without an engine that has weights of its own it does nothing.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        policy: Learner,
        backend: Backend,
        prompts: Sequence[Sequence[int]],
        temperature: float,
        max_tokens: int,
    ) -> None:
        """The probe is of the longest of `prompts`, which are the most of what a cache could hold."""
        self.engine = engine if isinstance(engine, SyncedEngine) else None
        self.policy, self.backend = policy, backend
        self.prompts = sorted(prompts, key=len, reverse=True)[:PROBES]
        self.sampling = Sampling(SAMPLES, temperature, min(TOKENS, max_tokens))
        self.sums: dict[str, int] = {}
        self.heard: dict[str, list[list[Completion]]] = {}

    def __call__(self) -> dict[str, float]:
        """Figures about it, for the metrics.

        Raises:
            UserError: sampler and trainer differ by more than the engine's tolerance.
        """
        if self.engine is None:
            return {}
        start, engine, told = time.perf_counter(), self.engine, ""
        sums: dict[str, Tensor] = {}
        weights = _noted(self.policy.weights(), engine.dtype, sums)
        if not (engine.shared and self.backend.rank):
            told = engine.sync(weights)
        for _ in weights:  # each is gathered from all processes, from one that does not send too
            pass
        if engine.shared:
            engine.follow(str(self.backend.gather(told)[0]))
        figures = self._canary(engine, self._changed(sums))
        return figures | {"time/sync": time.perf_counter() - start}

    def _changed(self, sums: Mapping[str, Tensor]) -> float:
        """The share of the layers' matrices that are others than at the last sync, 0 at the first."""
        before, self.sums = self.sums, {name: int(each) for name, each in sums.items()}
        changed = sum(each != before.get(name, each) for name, each in self.sums.items())
        return changed / max(1, len(self.sums))

    def while_sampling(self) -> AbstractContextManager[None]:
        """Within it the engine samples: where that is the trainer's own model, it has all its weights."""
        return self.policy.whole() if self.engine is None else nullcontext()

    def sleep(self) -> None:
        """Until the next sync nothing is sampled."""
        if self.engine is not None:
            self.engine.sleep()

    def _canary(self, engine: SyncedEngine, changed: float) -> dict[str, float]:
        heard: list[tuple[str, list[list[Completion]]]] = []
        if not (engine.shared and self.backend.rank):
            heard = engine.probe(self.prompts, self.sampling, SEED)
        if engine.shared:
            heard = self.backend.gather(heard)[0]
        stale = {name for name, found in heard if self.heard.get(name) == found and telling(found)}
        self.heard = dict(heard)
        own = [(name, name in stale, *self._differences(found)) for name, found in heard]
        everyone = [each for share in self.backend.gather(own) for each in share]
        for name, same, mean, largest, _ in everyone:
            if not mean <= engine.tolerance:  # a NaN too
                raise UserError(
                    f"after the weights were sent, the log-probs of {name} differ from the trainer's by "
                    f"{mean:.2g} on average over a probe (at most {largest:.2g}), more than "
                    f"{engine.tolerance:g}: it does not run these weights, and nothing was trained on its "
                    "responses; if only the precisions differ, raise rollout.canary_tolerance"
                )
            if same and changed >= CHANGED:
                raise UserError(
                    f"after the weights were sent, the log-probs of {name} over a probe are to the last bit "
                    f"those before, though {changed:.0%} of the layers' matrices changed: it goes on with "
                    "the old weights, and nothing was trained on its responses"
                )
        return {
            "rollout/canary_gap": max(mean for _, _, mean, _, _ in everyone),
            "rollout/canary_alignment": max(ratio for *_, ratio in everyone),
        }

    @torch.no_grad()
    def _differences(self, completions: Sequence[Sequence[Completion]]) -> tuple[float, float, float]:
        """Mean and largest difference of a token's log-prob, in nats; mean of exp |difference|, as T3."""
        groups = [
            Group(tuple(prompt), tuple(each.tokens for each in row))
            for prompt, row in zip(self.prompts, completions, strict=True)
        ]
        model, training = self.policy.model, self.policy.model.training
        model.eval()
        with self.policy.scoring():
            trainer_N = response_logprobs(model, groups, self.sampling.temperature)[0].float().cpu()
        model.train(training)
        sampler_N = torch.tensor([value for row in completions for each in row for value in each.logprobs])
        lengths_S = torch.tensor([len(each.tokens) for row in completions for each in row])
        gaps_N = (trainer_N - sampler_N).abs()
        ratio = float(logprob_alignment(trainer_N, sampler_N, lengths_S).mean())
        return float(gaps_N.mean()), float(gaps_N.max()), ratio


def telling(completions: Sequence[Sequence[Completion]]) -> bool:
    """Whether enough tokens are uncertain for other weights to show in some log-prob."""
    values = (value for row in completions for each in row for value in each.logprobs)
    return sum(value < CERTAIN for value in values) >= TELLING


def _noted(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, sums: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The weights as they are; of each matrix of a layer the sum of its bits, once rounded to `dtype`."""
    whole = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for name, weight in weights:
        # A bias near 0, or the embedding of a token that never comes, changes and nothing with it.
        if weight.dim() > 1 and not name.endswith((EMBEDDING, HEAD)):
            sums[name] = weight.detach().to(dtype).contiguous().view(whole).sum(dtype=torch.int64)
        yield name, weight
