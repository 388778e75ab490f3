"""Weight sync: the trainer's weights are sent to the sampler after each update, and a canary checks their use.

A sampler that keeps old weights, or some of them (a head, a cached prefix), still gives fluent text and
plausible log-probs; the run only learns less. So nothing is trained on before sampler and trainer agree on the
log-probs of a few canary completions.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mathrl.algorithms.alignment import logprob_alignment
from mathrl.core.errors import UserError
from mathrl.core.types import Completion
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import Learner
from mathrl.learners.scoring import eval_mode
from mathrl.models.context_parallel import alone
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.weights import EMBEDDING, HEAD
from mathrl.rollout.engine import RolloutEngine, Sampling, SyncedEngine

PROMPTS, SAMPLES, TOKENS, SEED = 4, 2, 16, 0
# In bfloat16 a small step moves log-probs by less than the precisions differ, but not by nothing. So a sampler
# whose canary log-probs are bit-identical to those before runs old weights, provided that at least this share of
# the matrices changed and that at least this many tokens are uncertain (a certain token's log-prob stays 0).
CHANGED_SHARE, UNCERTAIN_TOKENS, CERTAIN = 0.05, 8, -1e-3


@dataclass(frozen=True)
class CanaryResult:
    """How an engine's log-probs of the canary differ from the trainer's, in nats; `ratio` is exp |difference|.

    `stale`: they are bit-identical to those before the sync, where other weights would show.
    """

    engine: str
    stale: bool
    mean: float
    largest: float
    ratio: float


class WeightSync:
    """Sends the model's weights to its sampler and checks that they are in use; called at every rank.

    It does nothing where the engine has no weights of its own.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        policy: Learner,
        ranks: Ranks,
        prompts: Sequence[Sequence[int]],
        temperature: float,
        max_tokens: int,
    ) -> None:
        """The canary takes the longest of `prompts`, which are the most of what a cache could hold."""
        self.engine = engine if isinstance(engine, SyncedEngine) else None
        self.policy, self.ranks = policy, ranks
        self.prompts = sorted(prompts, key=len, reverse=True)[:PROMPTS]
        self.sampling = Sampling(SAMPLES, temperature, min(TOKENS, max_tokens))
        self.checksums: dict[str, int] = {}
        self.canaries: dict[str, list[list[Completion]]] = {}

    def __call__(self) -> dict[str, float]:
        """Send the weights and check them; figures about it, for the metrics.

        Raises:
            UserError: sampler and trainer differ by more than the engine's tolerance.
        """
        if self.engine is None:
            return {}
        start, engine, version = time.perf_counter(), self.engine, ""
        checksums: dict[str, Tensor] = {}
        weights = _with_checksums(self.policy.weights(), engine.dtype, checksums)
        if not (engine.shared and self.ranks.rank):
            version = engine.sync(weights)
        else:
            engine.join(weights)
        for _ in weights:  # a rank that does not send takes part in gathering each weight all the same
            pass
        if engine.shared:
            engine.follow(str(self.ranks.gather(version)[0]))
        figures = self._check_canary(engine, self._changed_share(checksums))
        return figures | {"time/sync": time.perf_counter() - start}

    def _changed_share(self, checksums: Mapping[str, Tensor]) -> float:
        """The share of the layers' matrices that changed since the last sync, 0 at the first."""
        before, self.checksums = self.checksums, {name: int(checksum) for name, checksum in checksums.items()}
        changed = sum(checksum != before.get(name, checksum) for name, checksum in self.checksums.items())
        return changed / max(1, len(self.checksums))

    def while_sampling(self) -> AbstractContextManager[None]:
        """Context in which the engine samples; the trainer's own model, if it samples, has all its weights."""
        return self.policy.whole() if self.engine is None else nullcontext()

    def sleep(self) -> None:
        """Tell the engine that nothing is sampled until the next sync."""
        if self.engine is not None:
            self.engine.sleep()

    def _check_canary(self, engine: SyncedEngine, changed_share: float) -> dict[str, float]:
        canaries: list[tuple[str, list[list[Completion]]]] = []
        if not (engine.shared and self.ranks.rank):
            canaries = engine.probe(self.prompts, self.sampling, SEED)
        if engine.shared:
            canaries = self.ranks.gather(canaries)[0]
        compared = [self._compare(name, completions) for name, completions in canaries]
        self.canaries = dict(canaries)
        results = [result for share in self.ranks.gather(compared) for result in share]
        for result in results:
            if not result.mean <= engine.tolerance:  # a NaN too
                raise UserError(
                    f"after the weights were sent, the log-probs of {result.engine} differ from the trainer's by "
                    f"{result.mean:.2g} on average over the canary (at most {result.largest:.2g}), more than "
                    f"{engine.tolerance:g}: it does not run these weights, and nothing was trained on its "
                    "responses; if only the precisions differ, raise rollout.canary_tolerance"
                )
            if result.stale and changed_share >= CHANGED_SHARE:
                raise UserError(
                    f"{result.engine} still serves the previous weights: its canary log-probs are bit-identical "
                    f"although {changed_share:.0%} of the weight matrices changed; nothing was trained on its "
                    "responses"
                )
        return {
            "rollout/canary_gap": max(result.mean for result in results),
            "rollout/canary_alignment": max(result.ratio for result in results),
        }

    @torch.no_grad()
    def _compare(self, engine: str, completions: list[list[Completion]]) -> CanaryResult:
        groups = [
            Group(tuple(prompt), tuple(completion.tokens for completion in row))
            for prompt, row in zip(self.prompts, completions, strict=True)
        ]
        with eval_mode(self.policy.model), alone(self.policy.model), self.policy.while_scoring():
            trainer_N = response_logprobs(self.policy.model, groups, self.sampling.temperature)[0].float().cpu()
        sampled = [completion for row in completions for completion in row]
        sampler_N = torch.from_numpy(np.concatenate([completion.logprobs for completion in sampled]))
        lengths_S = torch.tensor([len(completion.tokens) for completion in sampled])
        gaps_N = (trainer_N - sampler_N).abs()
        ratio = float(logprob_alignment(trainer_N, sampler_N, lengths_S).mean())
        stale = self.canaries.get(engine) == completions and is_sensitive(completions)
        return CanaryResult(engine, stale, float(gaps_N.mean()), float(gaps_N.max()), ratio)


def is_sensitive(completions: Sequence[Sequence[Completion]]) -> bool:
    """Whether enough tokens are uncertain for other weights to show in some log-prob."""
    uncertain = sum(int((completion.logprobs < CERTAIN).sum()) for row in completions for completion in row)
    return uncertain >= UNCERTAIN_TOKENS


def _with_checksums(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, checksums: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The weights as they are; `checksums` receives, per matrix of a layer, the sum of its bits in `dtype`."""
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for name, weight in weights:
        # A bias near 0, or the embedding of a token that never occurs, changes without any effect.
        if weight.dim() > 1 and not name.endswith((EMBEDDING, HEAD)):
            checksums[name] = weight.detach().to(dtype).contiguous().view(integers).sum(dtype=torch.int64)
        yield name, weight
