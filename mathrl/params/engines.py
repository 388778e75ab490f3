"""What another training engine makes of each parameter, as a table; what it cannot do is refused by it.

docs/engines.md shows the tables; a test compares them with the sections, so that no parameter is missing in one.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from mathrl.params.meaning import Meaning
from mathrl.params.schema import Params
from mathrl.params.training_engine import Trl, Verl
from mathrl.params.trl_meanings import TRL_RL, TRL_SFT, trl_combinations
from mathrl.params.verl_meanings import VERL_RL, verl_combinations


def unsupported(params: Params, stage: str) -> Iterator[str]:
    """What to write instead of each setting that the stage's engine cannot do, with the reason.

    Example: ["rl.ema=null (it keeps no moving average of the weights)"].
    """
    if stage == "sft" and isinstance(params.sft.engine, Trl) and params.sft.steps:
        yield from _refused(TRL_SFT, params)
    if stage == "rl" and isinstance(params.rl.engine, Trl):
        yield from _refused(TRL_RL, params)
        yield from trl_combinations(params)
    if stage == "rl" and isinstance(params.rl.engine, Verl):
        yield from _refused(VERL_RL, params)
        yield from verl_combinations(params)


def engine_problem(params: Params, stage: str) -> str:
    """One sentence with everything that the stage's engine cannot do; empty where it can do all."""
    instead = list(unsupported(params, stage))
    if not instead:
        return ""
    engine = getattr(params, stage).engine.type
    return f"engine {engine} cannot do what is set; set {', '.join(instead)}, or {stage}.engine=mathrl"


def _refused(table: Sequence[Meaning], params: Params) -> Iterator[str]:
    for meaning in table:
        if has_setting(params, meaning.setting):
            refusal = meaning.refusal(value_of(params, meaning.setting))
            if refusal:
                yield refusal


def has_setting(params: Any, setting: str) -> bool:
    """Whether there is a value at a dotted path: a union's other types, and a section that is null, have none.

    >>> from mathrl.params.train import Rl
    >>> has_setting(Rl(), "advantage.eps"), has_setting(Rl(), "advantage.gamma"), has_setting(Rl(), "kl.coef")
    (True, False, False)
    """
    *above, last = setting.split(".")
    section = params
    for name in above:
        section = getattr(section, name, None)
    return hasattr(section, last)


def value_of(params: Any, setting: str) -> Any:
    """The value at a dotted path.

    >>> from mathrl.params.train import Rl
    >>> value_of(Rl(), "optimizer.beta1")
    0.9
    """
    return reduce(getattr, setting.split("."), params)
