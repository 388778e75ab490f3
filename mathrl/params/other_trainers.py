"""What other trainers call a parameter or a metric: other_trainers.yaml, and the tables of the training engines.

The page docs/reference/coming_from.md is written from it, and an unknown parameter is looked up in it.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from mathrl.params.engines import TRL_METRICS, TRL_RL, VERL_METRICS, VERL_RL
from mathrl.params.schema import SECTIONS

FILE = Path(__file__).with_name("other_trainers.yaml")
OWN = "mathrl"  # a run of ours, read from W&B or TensorBoard, has our names
TRAINERS = ("verl", "TRL", "RLinf", "OpenRLHF", "prime-rl", "tinker", "NeMo-RL")
OTHERS = "others"  # names of no one trainer, for the lookup alone
NAME = re.compile(r"`([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)`")
# engines.py names settings of verl from their section.
VERL_SECTIONS = {name: f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model")}


# What becomes of a metric's value. The mean of |d| of log-prob differences d is the root of 4 k3 / pi if d is normal:
# k3 is then half its variance.
VALUES: dict[str, Callable[[float], float]] = {
    "same": lambda value: value,
    "one_minus": lambda value: 1 - value,
    "percent": lambda value: value / 100,
    "exp": lambda value: math.exp(min(value, 50.0)),
    "k3": lambda value: math.exp(min(math.sqrt(4 * max(value, 0.0) / math.pi), 50.0)),
}


@dataclass(frozen=True)
class OtherName:
    """A name in another trainer, and what mathrl calls it: OtherName("TRL", "num_generations", "rl.group_size").

    `ours` is empty where mathrl has no such thing; the note then says why, or what to do instead. A part in angle
    brackets stands for any text: rewards/<name>/mean. `value` says what a metric's values are: `same` as ours; a
    formula of `VALUES` that gives ours; `differs` where ours has another definition, and an import keeps theirs alone.
    """

    trainer: str
    name: str
    ours: str
    note: str = ""
    value: str = "same"


@cache
def parameter_names() -> tuple[OtherName, ...]:
    """The parameters of the other trainers, each name once."""
    rows: dict[tuple[str, str], OtherName] = {}
    for row in (*file_names(), *engine_names()):
        rows.setdefault((row.trainer, row.name), row)
    return tuple(rows.values())


def file_names() -> Iterator[OtherName]:
    """The parameters that the file has; they count before those of the engines' tables."""
    return _rows("parameters")


@cache
def metric_names() -> tuple[OtherName, ...]:
    """The metrics of the other trainers: those that the engines rename, then those of the file."""
    engines = [("verl", VERL_METRICS), ("TRL", TRL_METRICS)]
    renamed = [OtherName(trainer, name, ours) for trainer, names in engines for name, ours in names.items()]
    return (*renamed, *_rows("metrics"))


@cache
def _file() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(FILE.read_text(encoding="utf-8"))
    return loaded


def _rows(kind: str) -> Iterator[OtherName]:
    for trainer, names in _file()[kind].items():
        for name, row in names.items():
            fields = row if isinstance(row, Mapping) else {"ours": row}
            yield OtherName(trainer, name, fields["ours"] or "", fields.get("note", ""), fields.get("value", "same"))


def engine_names() -> Iterator[OtherName]:
    """The arguments that the engines' tables name in backquotes, with the parameter that becomes them."""
    for trainer, table in (("verl", VERL_RL), ("TRL", TRL_RL)):
        for meaning in table:
            for name in NAME.findall(meaning.becomes):
                section, dot, rest = name.partition(".")
                if trainer == "verl" and not dot:  # a part of the name before it
                    continue
                whole = f"{VERL_SECTIONS[section]}.{rest}" if dot and section in VERL_SECTIONS else name
                yield OtherName(trainer, whole, meaning.setting)


@cache
def _by_name() -> dict[str, str]:
    """Our parameter by their whole name, and by its last part where all names that end so mean the same."""
    whole: dict[str, str] = {}
    last: dict[str, set[str]] = {}
    for row in parameter_names():
        if row.ours:
            whole.setdefault(row.name, row.ours)
            last.setdefault(row.name.rpartition(".")[2], set()).add(row.ours)
    short = {name: next(iter(ours)) for name, ours in last.items() if len(ours) == 1 and "_" in name}
    return {**short, **whole}


def ours(name: str) -> str:
    """The parameter that another trainer calls `name`, as a dotted path; empty if none does.

    >>> ours("kl_loss_coef"), ours("num_generations"), ours("data.apply_chat_template"), ours("xyz")
    ('rl.kl.coef', 'rl.group_size', 'prompt.template', '')
    """
    return _by_name().get(name, "")


def ours_from(name: str, fields: Iterable[str]) -> str:
    """As `ours`, written from the section with these fields: what RL calls so is a field of any section that has it.

    >>> ours_from("kl_loss_coef", ["steps", "kl"]), ours_from("learning_rate", ["lr"]), ours_from("max_steps", ["lr"])
    ('kl.coef', 'lr', 'rl.steps')
    >>> ours_from("max_prompt_length", ["steps", "max_tokens"])
    'prompt.max_tokens'
    """
    section, *parts = ours(name).split(".")
    here = set(fields)
    if section == "rl":
        own = next((".".join(parts[depth:]) for depth, part in enumerate(parts) if part in here), "")
    else:
        own = ".".join(parts) if section in SECTIONS and here == set(SECTIONS[section].model_fields) else ""
    return own or ours(name)


def our_metric(trainer: str, name: str) -> tuple[str, str]:
    """Our name of a trainer's metric and what becomes of its value; ("", "") where no value of ours follows from it.

    >>> our_metric("TRL", "rewards/format/mean"), our_metric("TRL", "reward"), our_metric("verl", "actor/ppo_kl")
    (('reward/format', 'same'), ('reward/overall', 'same'), ('', ''))
    """
    if trainer == OWN:
        return name, "same"
    exact, patterns = _metrics_of(trainer)
    if name not in exact and name.startswith(("train/", "eval/")):  # TRL and OpenRLHF, in TensorBoard and W&B
        found = our_metric(trainer, name.removeprefix("train/").replace("eval/", "eval_", 1))
        if found[0]:
            return found
    if (row := exact.get(name)) is not None:
        return (row.ours, row.value) if row.value != "differs" else ("", "")
    for pattern, row in patterns:
        if row.value != "differs" and (match := pattern.fullmatch(name)):
            return re.sub("<(.+?)>", lambda part: match[part[1]], row.ours), row.value
    return "", ""


@cache
def _metrics_of(trainer: str) -> tuple[dict[str, OtherName], list[tuple[re.Pattern[str], OtherName]]]:
    """The metrics of a trainer that have one name, and the patterns of the others."""
    rows = [row for row in metric_names() if row.trainer == trainer and row.ours]
    exact: dict[str, OtherName] = {}
    for row in reversed(rows):
        exact[row.name] = row
    patterns = []
    for row in rows:
        if "<" in row.name:
            parts = re.split("<(.+?)>", row.name)
            texts = [f"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
            patterns.append((re.compile("".join(texts)), row))
    return exact, patterns
