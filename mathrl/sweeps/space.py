"""The search space: dotted keys checked against the schema, as Optuna's distributions, and back as overrides.

A number that is drawn is rounded to three digits, so that what ran is what can be written into params/.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from mathrl.core.errors import UserError
from mathrl.params import Params, load_params
from mathrl.params.load import FOLDER, dump_yaml
from mathrl.params.messages import unknown_hint
from mathrl.params.schema import READS
from mathrl.params.sweep import Axis, Categorical, Integer, Sweep, ZeroOrLog

Space = Mapping[str, Axis]
DIGITS = 3
# Trials that differ in these are not judged by the same measure.
MEASURE = ("run.seed", "rl.steps", "rl.eval_every", "rl.eval_samples", "rl.eval_temperature", "rl.max_tokens")


def check_space(sweep: Sweep, folder: Path = FOLDER) -> dict[str, Any]:
    """The present value of every key (trial 0), once all keys and bounds are known to fit the schema.

    Raises:
        UserError: every wrong key and bound, in one message.
    """
    where = f"{folder}/sweep.yaml: space"
    if not sweep.space:
        raise UserError(f"{where}: nothing is varied; write rl.lr: {{kind: log, low: 1e-5, high: 1e-3}}, say")
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
    if key in MEASURE:
        raise UserError("trials that differ in it cannot be told apart by dev accuracy; leave it out")
    if key.split(".")[0] not in READS["rl"]:
        raise UserError(f"a trial is an RL run, which reads only {', '.join(READS['rl'])}")
    present = _present(key, base)
    for value in ends(axis):
        load_params(folder, overrides=[*fixed, override(key, value)])
    if not _holds(axis, present):
        raise UserError(
            f"the present value {present!r}, which is trial 0, is not in the range; widen the range, or "
            "change the present value (set, or params/)"
        )
    return present


def _present(key: str, base: dict[str, Any]) -> Any:
    """The value at a dotted path of the parameters; lists are indexed by numbers.

    Raises:
        UserError: no such parameter, with the nearest name.
    """
    here: Any = base
    for word in key.split("."):
        if isinstance(here, list) and word.isdigit() and int(word) < len(here):
            here = here[int(word)]
        elif isinstance(here, dict) and word in here:
            here = here[word]
        else:
            known = list(here) if isinstance(here, dict) else []
            raise UserError(f"no parameter {word!r} there{unknown_hint(word, known)}")
    return here


def ends(axis: Axis) -> list[Any]:
    """Values that must fit the schema for all between them to fit."""
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
    """What Optuna draws from. "Zero or log" is one logarithmic range with room below `low` that means 0."""
    if isinstance(axis, Categorical):
        return CategoricalDistribution(axis.values)
    if isinstance(axis, Integer):
        return IntDistribution(axis.low, axis.high - (axis.high - axis.low) % axis.step, step=axis.step)
    if isinstance(axis, ZeroOrLog):
        return FloatDistribution(floor(axis), axis.high, log=True)
    return FloatDistribution(axis.low, axis.high, log=axis.kind == "log")


def floor(axis: ZeroOrLog) -> float:
    """The lower end of what is drawn: from here to `low` is `zero_share` of the logarithmic width.

    Of low 1e-3, high 1e-1, zero_share 1/3 it is 1e-4: ln 10 of ln 1000.
    """
    width = math.log(axis.high / axis.low)
    return axis.low * math.exp(-width * axis.zero_share / (1 - axis.zero_share))


def encode(axis: Axis, value: Any) -> Any:
    """The drawn number that stands for a value: in the middle of the room below `low` for 0."""
    if isinstance(axis, ZeroOrLog) and value == 0:
        return math.sqrt(floor(axis) * axis.low)
    return value


def decode(axis: Axis, drawn: Any) -> Any:
    """The parameter's value: of three digits and within its range; of a whole number or choice, itself."""
    if isinstance(axis, Categorical | Integer):
        return drawn
    if isinstance(axis, ZeroOrLog) and drawn < axis.low:
        return 0.0
    return min(axis.high, max(axis.low, float(f"{drawn:.{DIGITS}g}")))


def values_of(space: Space, drawn: Mapping[str, Any], present: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A trial's parameters; those of trial 0 are the present ones to the last digit."""
    return {key: present[key] if number == 0 else decode(axis, drawn[key]) for key, axis in space.items()}


def override(key: str, value: Any) -> str:
    """>>> override("rl.lr", 3e-05)
    'rl.lr=3e-05'
    """
    return f"{key}={dump_yaml(value).removesuffix('...' + chr(10)).strip()}"


def overrides(sweep: Sweep, values: Mapping[str, Any]) -> list[str]:
    """Everything that a trial sets over params/."""
    return [*sweep.set, *(override(key, value) for key, value in values.items())]


def trial_params(sweep: Sweep, values: Mapping[str, Any], folder: Path = FOLDER) -> Params:
    """Raises UserError: values that fit alone do not fit together (clip_low above 1, a multiple missed)."""
    return load_params(folder, overrides=overrides(sweep, values))
