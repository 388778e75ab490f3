"""A loss or an advantage of one's own, as a function by its import path, and what must hold of it.

    rl.loss={type: function, path: my_project.losses:my_loss, options: {low: 0.2}}
    rl.advantage={type: function, path: my_project.losses:my_advantage}

Both get one object with named tensors and the options as keyword arguments (docs/how_to/extend/loss.md). Before a run
trains, the function is called on small tensors; an error names the property that does not hold.

Shapes: S responses, N their tokens in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.paths import import_own

TOLERANCE = 1e-5  # of the same numbers, computed in another order


@dataclass(frozen=True)
class LossInput:
    """The tokens of a micro-batch; responses are whole, their groups may be cut.

    `logprobs_N` and `entropies_N` have a gradient, the others none. `kept_N` marks the tokens that have a loss; what
    the function gives for the others does not count. The mean over tokens (rl.loss.aggregation), importance weights,
    and the terms of rl.kl and rl.loss are added to what it returns.

    Example: two responses, of 2 tokens and of 1: lengths_S [2, 1], numbers_N [0, 0, 1].
    """

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    entropies_N: Tensor
    kept_N: Tensor
    lengths_S: Tensor

    @property
    def numbers_N(self) -> Tensor:
        """The number of each token's response."""
        numbers_S = torch.arange(len(self.lengths_S), device=self.lengths_S.device)
        return numbers_S.repeat_interleave(self.lengths_S)

    def mean_per_response(self, values_N: Tensor) -> Tensor:
        """The mean over the kept tokens of each response, spread to its tokens, [N]; 0 where none is kept.

        >>> tokens = _tokens(torch.tensor([2, 1]), torch.tensor([True, True, False]))
        >>> tokens.mean_per_response(torch.tensor([1.0, 3.0, 5.0])).tolist()
        [2.0, 2.0, 0.0]
        """
        kept_N, numbers_N = self.kept_N.to(values_N.dtype), self.numbers_N
        sums_S = values_N.new_zeros(len(self.lengths_S)).index_add(0, numbers_N, values_N * kept_N)
        counts_S = values_N.new_zeros(len(self.lengths_S)).index_add(0, numbers_N, kept_N)
        return (sums_S / counts_S.clamp(min=1))[numbers_N]


@dataclass(frozen=True)
class AdvantageInput:
    """The responses of a step, in the order of their groups.

    `groups_S` is the number of each response's group, `parts` are the parts of its reward by name, without weights.

    Example: two groups of two: rewards_S [1, 0, 0, 0], groups_S [0, 0, 1, 1].
    """

    rewards_S: Tensor
    groups_S: Tensor
    correct_S: Tensor
    truncated_S: Tensor
    lengths_S: Tensor
    parts: Sequence[Mapping[str, float]]

    def mean_per_group(self, values_S: Tensor) -> Tensor:
        """The mean over each response's group, [S].

        >>> _responses(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1])).mean_per_group(torch.tensor([1.0, 3, 5]))
        tensor([2., 2., 5.])
        """
        sums_P = values_S.new_zeros(int(self.groups_S.max()) + 1).index_add(0, self.groups_S, values_S)
        return (sums_P / torch.bincount(self.groups_S).to(values_S.dtype))[self.groups_S]


@dataclass(frozen=True)
class OwnFunction:
    """A function by its path, with its options; `where` is the parameter that names it."""

    where: str
    path: str
    options: Mapping[str, Any]

    def loss(self, tokens: LossInput) -> tuple[Tensor, Tensor]:
        """The loss per token, and where it is clipped: loss_N, clipped_N.

        Raises:
            UserError: the function cannot be imported or called, or returns no loss per token.
        """
        returned = self._call(tokens)
        loss_N, clipped_N = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        clipped_N = torch.zeros_like(tokens.kept_N) if clipped_N is None else clipped_N
        for name, value in (("a loss", loss_N), ("a mark of being clipped", clipped_N)):
            if not isinstance(value, Tensor) or value.shape != tokens.logprobs_N.shape:
                raise self._error(f"it must return {name} per token, [{len(tokens.logprobs_N)}], found {_show(value)}")
        return loss_N, clipped_N

    def advantage(self, responses: AdvantageInput) -> Tensor:
        """The advantage per response, [S], or per token, [N].

        Raises:
            UserError: the function cannot be imported or called, or returns neither.
        """
        advantages = self._call(responses)
        sizes = [len(responses.rewards_S), int(responses.lengths_S.sum())]
        if not isinstance(advantages, Tensor) or advantages.dim() != 1 or len(advantages) not in sizes:
            raise self._error(
                f"it must return an advantage per response, [{sizes[0]}], or per token, [{sizes[1]}], found "
                f"{_show(advantages)}"
            )
        return advantages

    def _call(self, argument: Any) -> Any:
        function: Callable[..., Any] = import_own(self.path, self.where)
        if not callable(function):
            raise self._error("it is no function; write package.module:function")
        try:
            return function(argument, **self.options)
        except UserError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise self._error(f"{type(error).__name__}: {error}") from error

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self.where}: {self.path}: {problem}")

    # --- what must hold

    def check_loss(self, skips_zero: bool) -> None:
        """Call the loss on small tensors. `skips_zero`: groups whose advantages are all 0 get no forward pass.

        Raises:
            UserError: a property does not hold; the message names it.
        """
        lengths_S, kept_N = torch.tensor([3, 1, 4]), torch.tensor([True, True, False, True, True, True, True, True])
        tokens = _tokens(lengths_S, kept_N)
        moved = replace(tokens, old_logprobs_N=tokens.old_logprobs_N + torch.linspace(-0.6, 0.6, 8))
        far = replace(tokens, old_logprobs_N=tokens.old_logprobs_N + torch.linspace(-25.0, 25.0, 8))
        for case, name in ((tokens, "on policy"), (moved, "off policy"), (far, "with log-ratios of up to 25")):
            loss_N = self.loss(case)[0]
            if not loss_N[kept_N].isfinite().all():
                raise self._error(f"the loss of a token is not finite {name}: {_show(loss_N)}; clamp the log-ratio")
            gradient_N = self._gradient(case)
            if not gradient_N[kept_N].isfinite().all():
                raise self._error(f"the gradient of a token is not finite {name}; clamp the log-ratio")
        gradient_N, moving_N = self._gradient(tokens), kept_N & (tokens.advantages_N != 0)
        if not (gradient_N[moving_N] != 0).all():
            raise self._error("a token with an advantage has no gradient on policy; is logprobs_N detached?")
        if (gradient_N * tokens.advantages_N > 0)[moving_N].all():
            raise self._error(
                "it rises with the log-prob of tokens with a positive advantage, so that training would make them less "
                "likely: return minus the advantage times the ratio"
            )
        if skips_zero and (gradient_N[kept_N & ~moving_N] != 0).any():
            raise self._error(
                "a token has a gradient although its advantage is 0, and groups without an advantage get no forward "
                "pass: set rl.loss.skip_zero_variance to false"
            )
        for case, name in ((tokens, "on policy"), (moved, "off policy")):
            self._check_apart(case, name)

    def _check_apart(self, tokens: LossInput, name: str) -> None:
        """The loss of a response is the same a second time, alone, and with other masked tokens."""
        whole_N = self.loss(tokens)[0].detach()
        if not torch.equal(whole_N, self.loss(tokens)[0].detach()):
            raise self._error(f"two calls with the same tokens give different losses ({name}); it must be a function")
        ends = tokens.lengths_S.cumsum(0).tolist()
        parts = [_part(tokens, number, [0, *ends][number], end) for number, end in enumerate(ends)]
        alone_N = torch.cat([self.loss(part)[0].detach() for part in parts])
        if not _close(whole_N, alone_N, tokens.kept_N):
            raise self._error(
                f"the loss of a response depends on the others of its micro-batch ({name}: {_show(whole_N)} together, "
                f"{_show(alone_N)} alone), and tokens_per_microbatch would change the result; compute it per response"
            )
        masked_N = torch.where(tokens.kept_N, tokens.logprobs_N.detach(), tokens.logprobs_N.detach() - 1.0)
        other_N = self.loss(replace(tokens, logprobs_N=masked_N.requires_grad_()))[0].detach()
        if not _close(whole_N, other_N, tokens.kept_N):
            raise self._error(
                f"the loss of a kept token depends on tokens that are masked ({name}); leave out those where kept_N is "
                "False, as `mean_per_response` does"
            )

    def check_advantage(self) -> None:
        """Call the advantage on small tensors.

        Raises:
            UserError: a property does not hold; the message names it.
        """
        mixed = _responses(torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]))
        equal = replace(mixed, rewards_S=torch.ones(5))
        for case, name in ((mixed, ""), (equal, " where all rewards of a group are equal")):
            advantages = self.advantage(case)
            if advantages.requires_grad or not advantages.is_floating_point():
                raise self._error(f"it must return numbers without a gradient, found {_show(advantages)}")
            if not advantages.isfinite().all():
                raise self._error(f"an advantage is not finite{name}: {_show(advantages)}")
        if not torch.equal(self.advantage(mixed), self.advantage(mixed)):
            raise self._error("two calls with the same responses give different advantages; it must be a function")
        order = torch.tensor([2, 0, 1, 4, 3])
        before, after = self._by_response(mixed), self._by_response(_reorder(mixed, order))
        if not torch.allclose(before[order], after, rtol=TOLERANCE, atol=TOLERANCE):
            raise self._error(
                "the advantage of a response depends on its place in the group: "
                f"{_show(before[order])} and {_show(after)} in another order"
            )

    def _by_response(self, responses: AdvantageInput) -> Tensor:
        """The sum of each response's advantages, [S]."""
        advantages = self.advantage(responses)
        if len(advantages) == len(responses.rewards_S):
            return advantages
        return torch.stack([part.sum() for part in torch.split(advantages, responses.lengths_S.tolist())])

    def _gradient(self, tokens: LossInput) -> Tensor:
        """Of the sum of the kept tokens' losses with respect to their log-probs, [N]."""
        loss_N = self.loss(tokens)[0]
        if not loss_N.requires_grad:
            raise self._error("no gradient reaches the loss; is logprobs_N detached?")
        (gradient_N,) = torch.autograd.grad(loss_N[tokens.kept_N].sum(), tokens.logprobs_N, allow_unused=True)
        return torch.zeros_like(tokens.logprobs_N) if gradient_N is None else gradient_N


def _tokens(lengths_S: Tensor, kept_N: Tensor) -> LossInput:
    """Tokens of the policy that sampled them: a good response, a bad one, and others without an advantage."""
    count = int(lengths_S.sum())
    logprobs_N = (-0.1 - torch.arange(count) * 0.37 % 2).requires_grad_()
    advantages_S = torch.tensor([1.0, -0.7] + [0.0] * len(lengths_S))[: len(lengths_S)]
    entropies_N = (0.5 + torch.arange(count) * 0.21 % 1).requires_grad_()
    advantages_N = advantages_S.repeat_interleave(lengths_S)
    return LossInput(logprobs_N, logprobs_N.detach().clone(), advantages_N, entropies_N, kept_N, lengths_S)


def _part(tokens: LossInput, number: int, start: int, end: int) -> LossInput:
    values = {field.name: getattr(tokens, field.name)[start:end] for field in fields(tokens)}
    return LossInput(**values | {"lengths_S": tokens.lengths_S[number : number + 1]})


def _responses(rewards_S: Tensor, groups_S: Tensor) -> AdvantageInput:
    count = len(rewards_S)
    lengths_S, truncated_S = torch.arange(count) % 3 + 1, torch.arange(count) == count - 1
    parts = [{"accuracy": reward} for reward in rewards_S.tolist()]
    return AdvantageInput(rewards_S, groups_S, rewards_S > 0.75, truncated_S, lengths_S, parts)


def _reorder(responses: AdvantageInput, order: Tensor) -> AdvantageInput:
    values = {field.name: getattr(responses, field.name) for field in fields(responses) if field.name != "parts"}
    moved = {name: values_S[order] for name, values_S in values.items()}
    return AdvantageInput(**moved, parts=[responses.parts[number] for number in order.tolist()])


def _close(first_N: Tensor, second_N: Tensor, kept_N: Tensor) -> bool:
    return torch.allclose(first_N[kept_N], second_N[kept_N], rtol=TOLERANCE, atol=TOLERANCE)


def _show(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    numbers = [f"{number:.3g}" for number in value.detach().flatten().tolist()[:8]]
    return f"{list(value.shape)}: {', '.join(numbers)}" if value.dim() else f"one number, {numbers[0]}"
