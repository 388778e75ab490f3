"""Sections rl.loss, rl.kl and rl.importance: the terms of the loss and the weights of its tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mathrl.params.advantage import Advantage, Distillation, SelfDistillation
from mathrl.params.imitation import Imitation, Solutions
from mathrl.params.section import FreeOptions, OwnPath, Section

Above = Annotated[float, Field(gt=0)]


class EntropyController(Section):
    """Adaptive entropy bonus (Skywork-OR1): its coefficient rises while the entropy is below the target, else it falls.

    It starts at entropy_coef, and is applied in steps after one whose entropy was at most the target.
    """

    target: float = Field(0.2, gt=0, description="Target entropy per token, in nats (the metric entropy).")
    delta: float = Field(0.005, gt=0, description="Change of the coefficient per step.")
    low: float = Field(0.0, ge=0, description="Lower bound of the coefficient.")
    high: float = Field(1.0, gt=0, description="Upper bound of the coefficient.")

    @model_validator(mode="after")
    def _bounds(self) -> "EntropyController":
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self


class _Loss(Section):
    """What all losses share."""

    type: str
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = Field(
        "token_mean",
        description="How token losses of the global batch are averaged; sequence_sum: sums divided by max_tokens.",
    )
    entropy_coef: float = Field(0.0, ge=0, description="Coefficient of the entropy bonus.")
    entropy_controller: EntropyController | None = Field(
        None, description="Adaptive coefficient of the entropy bonus; null: fixed."
    )
    top_entropy: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Policy loss only on this share of the tokens, those of highest entropy (80/20 paper: 0.2); null: "
        "on all.",
    )
    log_ratio_penalty: float = Field(
        0.0, ge=0, description="Coefficient of the squared log-ratio per token, a term of the loss (prime-rl: 0.001)."
    )
    off_policy_limit: float | None = Field(
        None,
        gt=0,
        description="No policy loss for tokens of negative advantage in responses whose mean sampler-trainer log-ratio "
        "is above this (DeepSeek-V3.2); null: all have one.",
    )
    drop_ratio: float | None = Field(
        None, gt=1, description="Skip updates whose mean ratio is above this (RLinf: 5); null: skip none."
    )
    skip_zero_variance: bool = Field(True, description="Skip the forward pass for groups whose advantages are all 0.")

    def conflict(self, advantage: Advantage, imitation: Imitation | None) -> str:
        """Why the loss cannot be with this advantage or imitation; empty if it can."""
        if isinstance(imitation, Solutions):
            return f"imitation solutions needs a divergence from a teacher, such as loss forward_kl, not {self.type}"
        return ""

    @property
    def leaves_out(self) -> bool:
        """Whether tokens can be without a policy loss that the denominators count."""
        return self.off_policy_limit is not None or self.top_entropy is not None or self.type == "clip_cov"


class _Clipped(_Loss):
    low: float = Field(0.2, gt=0, le=1, description="The ratio is clipped below at 1 - low.")
    high: float = Field(0.28, gt=0, description="The ratio is clipped above at 1 + high.")


class _DualClipped(_Clipped):
    dual: float | None = Field(
        None, gt=1, description="Upper bound of the ratio for negative advantages (verl: 3); null: no bound."
    )


class PpoClip(_DualClipped):
    """PPO's clipped ratio per token (arXiv:1707.06347)."""

    type: Literal["clip"] = "clip"


class Gspo(_DualClipped):
    """GSPO (arXiv:2507.18071): the clipped ratio of the whole response."""

    type: Literal["gspo"] = "gspo"


class Cispo(_Clipped):
    """CISPO (arXiv:2506.13585): the clipped ratio as a weight of the log-prob."""

    type: Literal["cispo"] = "cispo"


class ReinforceLoss(_Loss):
    """The log-prob times the advantage, without a ratio."""

    type: Literal["reinforce"] = "reinforce"


class Sapo(_Loss):
    """SAPO: a smooth gate of the ratio instead of a clip."""

    type: Literal["sapo"] = "sapo"
    temperatures: tuple[Above, Above] = Field(
        (1.0, 1.05), description="Temperatures of the gate: for positive and for other advantages."
    )


class Gmpo(_Clipped):
    """GMPO: the geometric mean of the clipped ratios."""

    type: Literal["gmpo"] = "gmpo"
    low: float = Field(0.2, gt=0, le=1, description="The log of the ratio is clipped below at -low.")
    high: float = Field(0.28, gt=0, description="The log of the ratio is clipped above at high.")


class _Dppo(_Loss):
    low: float = Field(0.2, gt=0, le=1, description="Largest divergence of tokens that become less likely.")
    high: float = Field(0.28, gt=0, description="Largest divergence of tokens that become more likely.")
    cap: float | None = Field(None, gt=1, description="Upper bound of the ratio (verl: 20); null: no bound.")


class DppoTv(_Dppo):
    """DPPO: no loss on tokens whose probability moved further than a bound of the total variation."""

    type: Literal["dppo_tv"] = "dppo_tv"


class DppoKl(_Dppo):
    """DPPO: no loss on tokens whose probability moved further than a bound of the binary KL."""

    type: Literal["dppo_kl"] = "dppo_kl"


class ClipCov(_Clipped):
    """Clip-Cov (arXiv:2505.22617): PPO's clipped ratio, without a random few tokens of high covariance."""

    type: Literal["clip_cov"] = "clip_cov"
    share: float = Field(2e-4, gt=0, le=1, description="Share of all tokens that have no loss, at most.")
    covariance_low: float = Field(1.0, description="Tokens of covariance above this are chosen from.")
    covariance_high: float = Field(5.0, description="Tokens of covariance below this are chosen from.")

    @model_validator(mode="after")
    def _covariances(self) -> "ClipCov":
        if self.covariance_low >= self.covariance_high:
            raise ValueError("covariance_low must be below covariance_high")
        return self


class KlCov(_Loss):
    """KL-Cov (arXiv:2505.22617): the ratio without a clip, and a KL to the old policy on tokens of high covariance."""

    type: Literal["kl_cov"] = "kl_cov"
    share: float = Field(2e-4, gt=0, le=1, description="Share of the tokens, of highest covariance, that have the KL.")
    coef: float = Field(1.0, gt=0, description="Coefficient of the KL, the absolute log-ratio.")


class _TeacherLoss(_Loss):
    top_k: int = Field(
        64, ge=1, description="Number of the teacher's most probable tokens at each place; at most the vocabulary."
    )
    rest: Literal["bin", "renormalise"] = Field(
        "bin",
        description="Probability of all other tokens: bin: one more token has it; renormalise: dropped, and both "
        "models are divided by what is left.",
    )

    def conflict(self, advantage: Advantage, imitation: Imitation | None) -> str:
        """Why the loss cannot be with this advantage or imitation; empty if it can."""
        if not isinstance(advantage, Distillation | SelfDistillation):
            return (
                f"loss {self.type} needs a teacher, and advantage {advantage.type} has none: set advantage "
                "distillation with a teacher model, or self_distillation"
            )
        if advantage.whiten:
            return f"loss {self.type} reads no advantage: leave advantage.whiten out"
        if self.off_policy_limit is not None:
            return f"loss {self.type} reads no advantage: leave loss.off_policy_limit out"
        return ""


class ForwardKl(_TeacherLoss):
    """KL(teacher, policy) over the teacher's most probable tokens (GKD, arXiv:2306.13649)."""

    type: Literal["forward_kl"] = "forward_kl"


class ReverseKl(_TeacherLoss):
    """KL(policy, teacher) over the teacher's most probable tokens (GKD, arXiv:2306.13649)."""

    type: Literal["reverse_kl"] = "reverse_kl"


class Jsd(_TeacherLoss):
    """Generalised Jensen-Shannon divergence over the teacher's most probable tokens (GKD, arXiv:2306.13649)."""

    type: Literal["jsd"] = "jsd"
    beta: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Share of the teacher in the mixture: near 0 like forward_kl, near 1 like reverse_kl.",
    )


TeacherLoss = ForwardKl | ReverseKl | Jsd


class FunctionLoss(_Loss):
    """A loss per token of your own (docs/how_to/extend/loss.md)."""

    type: Literal["function"] = "function"
    path: OwnPath
    options: FreeOptions = Field(FreeOptions(), description="Keyword arguments of the function.")


Loss = Annotated[
    PpoClip
    | Gspo
    | Cispo
    | ReinforceLoss
    | Sapo
    | Gmpo
    | DppoTv
    | DppoKl
    | ClipCov
    | KlCov
    | ForwardKl
    | ReverseKl
    | Jsd
    | FunctionLoss,
    Field(discriminator="type"),
]


class KlController(Section):
    """Adaptive KL coefficient (Ziegler et al.): it rises while the KL is above the target, else it falls."""

    target: float = Field(0.1, gt=0, description="Target KL per token (the metric kl).")
    horizon: float = Field(
        10_000,
        gt=0,
        description="Number of responses over which the coefficient changes by a factor of at most about 1.2.",
    )


class _Kl(Section):
    type: str
    coef: float = Field(0.001, ge=0, description="Coefficient of the KL to the reference; 0: no reference.")
    controller: KlController | None = Field(None, description="Adaptive coefficient; null: fixed.")
    reset_every: int | None = Field(
        None, ge=1, description="Steps after which the reference gets the policy's weights (ProRL); null: it stays."
    )

    @model_validator(mode="after")
    def _start(self) -> Any:
        if self.reset_every is not None and not self.coef:
            raise ValueError("reset_every needs coef above 0: without it there is no reference")
        if self.controller is not None and not self.coef:
            raise ValueError("controller needs coef above 0 to start from")
        return self


class LossKl(_Kl):
    """The KL to the reference as a term of the loss."""

    type: Literal["loss"] = "loss"
    estimator: Literal["k2", "k3", "k3+", "unbiased"] = Field(
        "k3",
        description="Estimator of Schulman; k3+: value of k3, gradient of k2; unbiased: k3 times the ratio "
        "(DeepSeek-V3.2). The expected gradient of k1 is 0.",
    )


class RewardKl(_Kl):
    """The KL to the reference taken off the reward of each token: coef times k1 (the others are biased there)."""

    type: Literal["reward"] = "reward"


class KlProbe(Section):
    """The KL to the reference measured on a few groups of each step, and not used."""

    type: Literal["probe"] = "probe"
    groups: int = Field(4, ge=1, description="Groups per step on which the KL is measured.")


Kl = Annotated[LossKl | RewardKl | KlProbe, Field(discriminator="type")]


class Reject(Section):
    """Tokens or responses whose ratio of trainer to sampler lies outside [low, high] have no loss."""

    level: Literal["token", "sequence", "geometric"] = Field(
        "geometric",
        description="token: its ratio; sequence: the product over the response; geometric: the geometric mean over it.",
    )
    low: float = Field(ge=0, description="Lower bound of the ratio; for geometric near 1, such as 0.999.")
    high: float = Field(gt=0, description="Upper bound of the ratio; for geometric near 1, such as 1.001.")

    @model_validator(mode="after")
    def _bounds(self) -> "Reject":
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self


class _Importance(Section):
    type: str
    when: Literal["always", "other_engine"] = Field(
        "always", description="other_engine: only where vLLM samples, which computes log-probs in its own way."
    )
    level: Literal["token", "sequence"] = Field("token", description="Ratio per token, or per response.")
    high: float = Field(2.0, gt=0, description="Upper bound of the ratio.")
    normalise: bool = Field(
        False, description="Divide the weights by their mean over the batch, so that the step keeps its size (verl)."
    )
    reject: Reject | None = Field(
        None, description="Beside the weights: no loss for tokens or responses out of bounds; null: all have one."
    )
    veto: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="No loss for a response in which the ratio of any token is smaller (verl: 1e-4); null: no veto.",
    )


class Truncated(_Importance):
    """The loss times the ratio of trainer to sampler, which is capped at high."""

    type: Literal["truncated"] = "truncated"


class Masked(_Importance):
    """The loss times the ratio of trainer to sampler; no loss outside [low, high]."""

    type: Literal["masked"] = "masked"
    low: float = Field(0.5, ge=0, description="Lower bound of the ratio.")

    @model_validator(mode="after")
    def _bounds(self) -> "Masked":
        if self.low >= self.high:
            raise ValueError("importance.low must be below importance.high")
        return self


Importance = Annotated[Truncated | Masked, Field(discriminator="type")]
