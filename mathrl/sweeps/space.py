"""The search space: dotted keys checked against the schema, as Optuna's distributions, and back as overrides.

Numbers are rounded to three digits, so that the value that ran can be written into params/.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params import Params
from mathrl.params.load import FOLDER, dump_yaml
from mathrl.params.messages import tagged_at, unknown_hint
from mathrl.params.schema import READS
from mathrl.params.sweep import Axis, Categorical, Integer, Sweep, ZeroOrLog
from mathrl.planning.final_values import doubts_of

Space = Mapping[str, Axis]
DIGITS = 3
# Trials that differ in these have no comparable scores.
NOT_VARIED = ("run.seed", "rl.steps", "rl.dev.every", "rl.dev.samples", "rl.dev.temperature", "rl.max_tokens")


def check_space(sweep: Sweep, folder: Path = FOLDER) -> dict[str, Any]:
    """The present value of every key (trial 0), after a check of all keys and bounds against the schema.

    Raises:
        UserError: every wrong key and bound, in one message.
    """
    where = f"{folder}/sweep.yaml: space"
    if not sweep.space:
        raise UserError(
            f"{where}: nothing is varied; write for example rl.optimizer.lr: {{kind: log, low: 1e-5, high: 1e-3}}"
        )
    base = load_params(folder, overrides=sweep.set).model_dump(mode="json", by_alias=True)
    present: dict[str, Any] = {}
    wrong: list[str] = []
    for key, axis in sweep.space.items():
        try:
            present[key] = _check(key, axis, base, sweep.set, folder)
        except UserError as error:
            wrong.append(f"{where}: {key}: {error}")
    if wrong:
        raise UserError("; ".join(wrong))
    return present


def _check(key: str, axis: Axis, base: dict[str, Any], fixed: Sequence[str], folder: Path) -> Any:
    if key in NOT_VARIED:
        raise UserError("trials that differ in it cannot be compared by dev accuracy; leave it out")
    if key.split(".")[0] not in READS["rl"]:
        raise UserError(f"a trial is an RL run, which reads only {', '.join(READS['rl'])}")
    present = _present(key, base)
    for value in ends(axis):  # what a trial proposes nobody typed, so the whole range is judged
        doubts = doubts_of(load_params(folder, overrides=[*fixed, override(key, value)]), ["rl"])
        if doubts:
            raise UserError("; ".join(f"{d.problem}: narrow the range, or leave it out and {d.advice}" for d in doubts))
    if not _holds(axis, present):
        raise UserError(
            f"the present value {present!r}, which is trial 0, is not in the range; widen the range, or "
            "change the present value (set, or params/)"
        )
    return present


def _present(key: str, base: dict[str, Any]) -> Any:
    """The value at a dotted path of the parameters; lists are indexed by numbers, of a union it is the type.

    Raises:
        UserError: no such parameter, with the nearest name.
    """
    value: Any = base
    for part in key.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        elif key == "rl.kl.coef" and value is None:
            return 0.0  # the KL is null
        else:
            names = list(value) if isinstance(value, dict) else []
            raise UserError(f"no parameter {part!r} there{unknown_hint(part, names)}")
    return value["type"] if isinstance(value, dict) and "type" in value else value


def ends(axis: Axis) -> list[Any]:
    """Values that must fit the schema, so that all values between them do."""
    if isinstance(axis, Categorical):
        return list(axis.values)
    return [*([0.0] if isinstance(axis, ZeroOrLog) else []), axis.low, axis.high]


def _holds(axis: Axis, value: Any) -> bool:
    if isinstance(axis, Categorical):
        return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in axis.values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(axis, Integer) and (value - axis.low) % axis.step:
        return False
    return (isinstance(axis, ZeroOrLog) and value == 0) or axis.low <= value <= axis.high


def distribution(axis: Axis) -> BaseDistribution:
    """Optuna's distribution. "Zero or log" is one logarithmic range; its part below `low` stands for 0."""
    if isinstance(axis, Categorical):
        return CategoricalDistribution(axis.values)
    if isinstance(axis, Integer):
        return IntDistribution(axis.low, axis.high - (axis.high - axis.low) % axis.step, step=axis.step)
    if isinstance(axis, ZeroOrLog):
        return FloatDistribution(floor(axis), axis.high, log=True)
    return FloatDistribution(axis.low, axis.high, log=axis.kind == "log")


def floor(axis: ZeroOrLog) -> float:
    """The lower end of the range drawn from: from here to `low` is `zero_share` of the logarithmic width.

    Of low 1e-3, high 1e-1, zero_share 1/3 it is 1e-4: ln 10 of ln 1000.
    """
    width = math.log(axis.high / axis.low)
    return axis.low * math.exp(-width * axis.zero_share / (1 - axis.zero_share))


def encode(axis: Axis, value: Any) -> Any:
    """The drawn number that stands for a value: for 0, the middle of the range below `low`."""
    if isinstance(axis, ZeroOrLog) and value == 0:
        return math.sqrt(floor(axis) * axis.low)
    return value


def decode(axis: Axis, drawn: Any) -> Any:
    """The parameter's value: an integer or choice as drawn, else rounded to three digits and within the range."""
    if isinstance(axis, Categorical | Integer):
        return drawn
    if isinstance(axis, ZeroOrLog) and drawn < axis.low:
        return 0.0
    return min(axis.high, max(axis.low, float(f"{drawn:.{DIGITS}g}")))


def values_of(space: Space, drawn: Mapping[str, Any], present: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A trial's parameters; trial 0 has exactly the present ones."""
    return {key: present[key] if number == 0 else decode(axis, drawn[key]) for key, axis in space.items()}


def override(key: str, value: Any) -> str:
    """The override that sets the key.

    >>> override("rl.optimizer.lr", 3e-05)
    'rl.optimizer.lr=3e-05'
    >>> override("rl.advantage", "rloo")
    'rl.advantage.type=rloo'
    """
    if isinstance(value, str) and tagged_at(Params, key.split(".")) is not None:
        key += ".type"  # the options that both types have stay
    return f"{key}={dump_yaml(value).removesuffix('...' + chr(10)).strip()}"


def overrides(sweep: Sweep, values: Mapping[str, Any]) -> list[str]:
    """Everything that a trial sets over params/."""
    return [*sweep.set, *(override(key, value) for key, value in values.items())]


def trial_params(sweep: Sweep, values: Mapping[str, Any]) -> Params:
    """Raises UserError: values that are valid alone are not valid together (a multiple missed)."""
    return load_params(overrides=overrides(sweep, values))
