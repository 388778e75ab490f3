"""The verifier's two tiers: the rules first, then a model that judges what they refuse without settling it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mathrl.core.errors import UserError
from mathrl.grading import Verdict
from mathrl.params.run import ModelVerifier
from mathrl.rewards.model_judge import Judgement, ModelJudge

# Reasons of refusals that leave nothing to judge.
SETTLED = ("different numbers", "words where mathematics was expected", "no option letter")
MODEL_RULE = "model"  # ends the rule of a verdict that the model gave: "boxed; model"


class Cascade:
    """Verdicts of the rules in, verdicts of both tiers out."""

    def __init__(self, params: ModelVerifier) -> None:
        options = params.model_dump(include={"max_tokens", "timeout_seconds", "at_a_time"})
        self.judge = ModelJudge(params.endpoint, params.model, **options)
        self.asked, self.on_failure = params.asked, params.on_failure
        self._tiers: Counter[str] = Counter()
        self._overruled = 0

    def decide(self, verdicts: Sequence[Verdict], truths: Sequence[str | tuple[str, ...]]) -> list[Verdict]:
        """The final verdicts, in order.

        A judgement that cannot be used (two orders that differ, an accepted decoy, another reply than one word) is a
        refusal. Where the endpoint fails and `on_failure` is "rule", the rules' verdict stands and is counted.

        Raises:
            UserError: the endpoint fails and `on_failure` is "stop".
        """
        accepted = [(truth,) if isinstance(truth, str) else truth for truth in truths]
        asked = [n for n, verdict in enumerate(verdicts) if self._is_open(verdict, accepted[n])]
        pairs = [(str(verdicts[n].extracted), truth) for n in asked for truth in accepted[n]]
        judged = iter(self.judge.compare(pairs))
        if self.judge.failure and self.on_failure == "stop":
            raise UserError(
                f"the judge model cannot be asked: {self.judge.failure}; start its server or correct "
                "model_verifier.endpoint and model; model_verifier.on_failure=rule goes on with the rules' verdicts"
            )
        final = list(verdicts)
        for n in asked:
            final[n] = self._merged(verdicts[n], [next(judged) for _ in accepted[n]])
        self._tiers["rule"] += len(verdicts) - len(asked)
        return final

    def _is_open(self, verdict: Verdict, truths: tuple[str, ...]) -> bool:
        """Whether the model is asked. A Countdown has one rule and no accepted answer to compare with."""
        text = (verdict.extracted or "").strip()
        if not text or verdict.rule.endswith("countdown"):
            return False
        if self.asked == "all":
            return text not in truths
        return not verdict.correct and verdict.reason not in SETTLED

    def _merged(self, verdict: Verdict, judgements: Sequence[Judgement]) -> Verdict:
        equal = "equal" in judgements
        unusable = next((judgement for judgement in judgements if judgement != "different"), None)
        if not equal and unusable == "failed":
            self._tiers["rule"] += 1
            return verdict
        self._tiers["model" if equal or unusable is None else "none"] += 1
        if equal or unusable is None:
            self._overruled += equal != verdict.correct
        reason = "" if equal else f"the judge model: {unusable or 'different'}"
        return replace(verdict, correct=equal, rule=f"{verdict.rule.split(';')[0]}; {MODEL_RULE}", reason=reason)

    def counters(self) -> dict[str, float]:
        """Metrics since the last call: the share that each tier decided, what the model overruled, requests, hits."""
        graded, judged, counts = self._tiers.total(), self._tiers["model"], self.judge.counts
        metrics = {f"verifier/tier/{tier}": self._tiers[tier] / max(graded, 1) for tier in ("rule", "model", "none")}
        metrics["verifier/model_judged"] = float(judged)
        metrics["verifier/model_disagreement"] = self._overruled / max(judged, 1)
        names = ("requests", "cache_hits", "inconsistent", "fooled", "unreadable", "not_asked", "failed")
        metrics |= {f"verifier/model_{name}": float(counts[name]) for name in names}
        self._tiers.clear()
        counts.clear()
        self._overruled = 0
        return metrics
