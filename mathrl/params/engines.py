"""What another training engine makes of each parameter, as a table; what it cannot do is refused by it.

docs/engines.md shows the tables; a test compares them with the sections, so that no parameter is missing in one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from mathrl.params.meaning import Meaning
from mathrl.params.schema import Params
from mathrl.params.trl_meanings import TRL_RL, TRL_SFT, trl_combinations
from mathrl.params.verl_meanings import VERL_RL, verl_combinations


def unsupported(params: Params, stage: str) -> Iterator[str]:
    """What to write instead of each setting that the stage's engine cannot do, with the reason.

    Example: ["rl.ema=null (it keeps no moving average of the weights)"].
    """
    if stage == "sft" and params.sft.engine == "trl" and params.sft.steps:
        yield from _refused(TRL_SFT, params)
    if stage == "rl" and params.rl.engine == "trl":
        yield from _refused(TRL_RL, params)
        yield from trl_combinations(params)
    if stage == "rl" and params.rl.engine == "verl":
        yield from _refused(VERL_RL, params)
        yield from verl_combinations(params)


def engine_problem(params: Params, stage: str) -> str:
    """One sentence with everything that the stage's engine cannot do; empty where it can do all."""
    instead = list(unsupported(params, stage))
    if not instead:
        return ""
    engine = getattr(params, stage).engine
    return f"engine {engine} cannot do what is set; set {', '.join(instead)}, or {stage}.engine=mathrl"


def _refused(table: Sequence[Meaning], params: Params) -> Iterator[str]:
    skipped = _irrelevant(params)
    for meaning in table:
        if meaning.setting not in skipped:
            refusal = meaning.refusal(value_of(params, meaning.setting))
            if refusal:
                yield refusal


def value_of(params: Params, setting: str) -> Any:
    """The value at a dotted path.

    >>> from mathrl.params.train import Rl
    >>> value_of(Rl(), "optimizer.beta1")
    0.9
    """
    value: Any = params
    for name in setting.split("."):
        value = getattr(value, name)
    return value


def _irrelevant(params: Params) -> set[str]:
    """Settings that have no effect beside the others, so that no value of theirs is refused."""
    rl = params.rl
    names = {"rl.std_ddof", "rl.std_eps"} if rl.advantage != "group_std" else set()
    return names | (set() if rl.kl_coef else {"rl.kl_in", "rl.kl_estimator"})
