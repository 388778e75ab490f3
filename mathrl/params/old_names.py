"""Parameters of version 0.1 and what they are called now: one table, read wherever values come from.

Files, presets, records, overrides and search spaces may have the old names; `OldNames` puts their values where they
are now, and prints a line about them.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mathrl.params.paths import choose_type, mapping_at, merge, place_at, written_at

# The names of 0.1, by what each is now. Those that choose a type come first: the others are options of it.
NAMES: dict[str, str] = {
    "rl.advantage": "rl.advantage.type",
    "rl.policy_loss": "rl.loss.type",
    "rl.curriculum.order": "rl.curriculum.type",
    "rl.importance.kind": "rl.importance.type",
    "rl.dynamic_sampling": "rl.dynamic_sampling.rounds",
    "rl.kl_coef": "rl.kl.coef",
    "rl.kl_in": "rl.kl.type",
    "rl.kl_probe": "rl.kl.groups",
    "rl.kl_estimator": "rl.kl.estimator",
    "rl.kl_controller": "rl.kl.controller",
    "rl.verl": "rl.engine",
    **{f"{section}.lr": f"{section}.optimizer.lr" for section in ("sft", "rl", "dpo", "reward_model")},
    "rl.critic": "rl.advantage.critic",
    "rl.critic.lr": "rl.advantage.critic.optimizer.lr",
    "rl.std_ddof": "rl.advantage.ddof",
    "rl.std_eps": "rl.advantage.eps",
    "rl.step_returns": "rl.advantage.step_returns",
    "rl.k": "rl.advantage.k",
    "rl.part_weights": "rl.advantage.weights",
    "rl.whiten": "rl.advantage.whiten",
    "rl.gamma": "rl.advantage.gamma",
    "rl.gae_lambda": "rl.advantage.lam",
    "rl.clip_low": "rl.loss.low",
    "rl.clip_high": "rl.loss.high",
    "rl.dual_clip": "rl.loss.dual",  # of dppo: rl.loss.cap
    "rl.sapo_temperatures": "rl.loss.temperatures",
    "rl.log_ratio_penalty": "rl.loss.log_ratio_penalty",
    "rl.aggregation": "rl.loss.aggregation",
    "rl.entropy_coef": "rl.loss.entropy_coef",
    "rl.drop_ratio": "rl.loss.drop_ratio",
    "rl.skip_zero_variance": "rl.loss.skip_zero_variance",
    "rl.prompts_per_round": "rl.dynamic_sampling.prompts_per_round",
    "rl.eval_every": "rl.dev.every",
    "rl.eval_samples": "rl.dev.samples",
    "rl.eval_temperature": "rl.dev.temperature",
    "rl.export": "rl.dev.export",
}
# The types of 0.1 that have another name now.
TYPES: dict[str, dict[str, str]] = {
    "rl.advantage": {
        "group_std": "grpo",
        "group_mean": "dr_grpo",
        "leave_one_out": "rloo",
        "part_std": "gdpo",
        "max_at_k": "pkpo",
        "none": "reinforce",
        "greedy": "remax",
        "correct": "rft",
    },
    "rl.loss": {"geo_mean": "gmpo"},
}
CHOOSERS = ("rl.advantage", "rl.policy_loss", "rl.curriculum.order", "rl.importance.kind")
STILL_THERE = ("rl.advantage", "rl.dynamic_sampling")  # old only where their values are
DPPO_BOUND = ("rl", "loss", "cap")  # what 0.1 had as dual_clip too
MOST_NAMED = 6
_told: set[str] = set()  # old names that this process has printed a line about
_PLACES = {name: place for place, name in enumerate(NAMES)}


def new_key(key: str) -> str:
    """The parameter that an old name means; any other as it is.

    >>> new_key("rl.lr"), new_key("rl.critic.optimizer.beta2"), new_key("rl.steps"), new_key("rl.advantage")
    ('rl.optimizer.lr', 'rl.advantage.critic.optimizer.beta2', 'rl.steps', 'rl.advantage')
    """
    names = [name for name in NAMES if name not in STILL_THERE and f"{key}.".startswith(f"{name}.")]
    longest = max(names, key=len, default="")
    return NAMES[longest] + key[len(longest) :] if longest else key


def new_value(key: str, value: Any) -> Any:
    """The value of a parameter of now, from one of 0.1.

    >>> new_value("rl.advantage", "leave_one_out"), new_value("rl.loss.type", "clip"), new_value("rl.kl.coef", 0.1)
    ('rloo', 'clip', 0.1)
    """
    return TYPES.get(key.removesuffix(".type"), {}).get(value, value) if isinstance(value, str) else value


def _order(key: str) -> int:
    return max((place for name, place in _PLACES.items() if f"{key}.".startswith(f"{name}.")), default=len(_PLACES))


def is_old(key: str, value: Any) -> bool:
    """Whether a parameter is one of 0.1: by its name, or by its value where the name is still there."""
    if key == "rl.advantage":
        return isinstance(value, str) and value in TYPES[key]
    if key == "rl.dynamic_sampling":
        return isinstance(value, int) and not isinstance(value, bool)
    return new_key(key) != key


class OldNames:
    """The old names met so far, and the values of those that have no place yet: `rl.gamma` before its advantage."""

    def __init__(self, met: Mapping[str, str] | None = None, waiting: Mapping[str, Any] | None = None) -> None:
        self.met, self.waiting = dict(met or {}), dict(waiting or {})

    def copy(self) -> "OldNames":
        return OldNames(self.met, self.waiting)

    def split(self, section: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of a section that have names of now, and the others by their dotted old names, in order."""
        kept: dict[str, Any] = {}
        old: dict[str, Any] = {}
        for key, value in values.items():
            path = f"{section}.{key}"
            if parts := old_parts(path, value):
                old |= parts
            elif key == "optimizer" and isinstance(value, Mapping):
                kept[key] = _without_muons(value)
            elif path == "rl.lora" and isinstance(value, Mapping) and value.get("dropout") == 0:
                kept[key] = {name: part for name, part in value.items() if name != "dropout"}
            elif path == "curate.deduplicate" and isinstance(value, Mapping):
                kept[key] = _without_permutations(value)
            elif path == "sweep.space" and isinstance(value, Mapping):
                kept[key] = {self._new_name(name): _axis(name, axis) for name, axis in value.items()}
            else:
                kept[key] = value
        if old and isinstance(kept.get("advantage"), str):  # one of 0.1 that has its name still: its options stay
            old["rl.advantage"] = kept.pop("advantage")
        return kept, dict(sorted(old.items(), key=lambda item: _order(item[0])))

    def parts(self, key: str, value: Any) -> dict[str, Any]:
        """As `old_parts`; beside old options of the advantage a name that is still one of its types chooses only it."""
        beside = any(new.startswith("rl.advantage.") for new in self.met.values())
        if key == "rl.advantage" and isinstance(value, str) and beside:
            return {key: value}
        return old_parts(key, value)

    def _new_name(self, key: str) -> str:
        new = NAMES.get(key, new_key(key))
        if new != key:
            self.met[key] = new
        return new

    def place(self, values: dict[str, Any], old: str, value: Any) -> None:
        """Put the value of an old name where it is now, or keep it until its place is there."""
        if is_old(old, value):
            self.met[old] = NAMES.get(old, new_key(old))
        if put(values, old, value):
            self.waiting.pop(old, None)
        else:
            self.waiting[old] = value

    def settle(self, values: dict[str, Any]) -> None:
        """Put what still waits where it has a place by now, unless something is written there."""
        for old in sorted(self.waiting, key=_order):
            if written_at(values, new_key(old).split(".")) is None and put(values, old, self.waiting[old]):
                del self.waiting[old]

    def report(self) -> None:
        """Print a line about the names that this process has not told of yet."""
        if self.met.keys() - _told:
            print(self.line(_told), file=sys.stderr)
            _told.update(self.met)

    def line(self, told: Collection[str] = ()) -> str:
        """What has another name now, without the old names that were told of.

        >>> OldNames({"rl.lr": "rl.optimizer.lr"}).line()
        'parameters of version 0.1: rl.lr is rl.optimizer.lr now'
        """
        pairs = [f"{old} is {new} now" for old, new in self.met.items() if old not in told]
        more = f", and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
        idle = f"; without effect here, and left out: {', '.join(self.waiting)}" if self.waiting else ""
        return f"parameters of version 0.1: {', '.join(pairs[:MOST_NAMED])}{more}{idle}"


def put(values: dict[str, Any], old: str, value: Any) -> bool:
    """Put the value of an old name where it is now; returns whether it has a place there."""
    if old in CHOOSERS:
        union = NAMES[old].removesuffix(".type")
        dual = written_at(values, ("rl", "loss", "dual"))
        choose_type(values, union.split("."), new_value(union, value))
        if old == "rl.policy_loss" and dual is not None and place_at(values, DPPO_BOUND) is not None:
            mapping_at(values, ("rl", "loss"))["cap"] = dual
        return True
    if old == "rl.dynamic_sampling":
        _set(values, "rl.dynamic_sampling.rounds" if value else old, value or None)
        return True
    if old == "rl.prompts_per_round" and not isinstance(written_at(values, ("rl", "dynamic_sampling")), Mapping):
        return value is None
    if old.startswith("rl.kl_"):
        return _put_kl(values, old, value)
    if old == "rl.dual_clip" and place_at(values, DPPO_BOUND) is not None:
        _set(values, "rl.loss.cap", value)
        return True
    if old == "rl.critic" and value is None:
        return True
    if place_at(values, new_key(old).split(".")) is None and _waits(values, old):
        return False
    if old == "rl.critic":
        mapping_at(values, new_key(old).split("."))  # its parts follow
    else:
        _set(values, new_key(old), value)
    return True


def _waits(values: Mapping[str, Any], old: str) -> bool:
    """Whether an old name may have a place once another type is chosen; one that never was is for the schema."""
    if old.startswith(("rl.critic.", "rl.verl.")):
        return place_at(values, ("rl", "advantage", "critic") if old[3] == "c" else ("rl", "engine", "nodes")) is None
    return old in NAMES or old.startswith(("rl.importance.", "rl.curriculum."))  # of a section of 0.1


def _put_kl(values: dict[str, Any], old: str, value: Any) -> bool:
    kl = written_at(values, ("rl", "kl"))
    measured = isinstance(kl, Mapping) and kl.get("type") == "probe"
    if old == "rl.kl_coef":
        if measured and value:
            mapping_at(values, ("rl",))["kl"] = {"coef": value}
        elif not measured:
            _set(values, "rl.kl.coef", value)
        return True
    if old == "rl.kl_probe":
        if measured and not value:
            _set(values, "rl.kl", None)
        elif value and not (isinstance(kl, Mapping) and kl.get("coef")):
            mapping_at(values, ("rl",))["kl"] = {"type": "probe", "groups": value}
        return True
    if not isinstance(kl, Mapping) or measured:
        return False
    if old == "rl.kl_in":
        choose_type(values, ("rl", "kl"), value)
    elif old != "rl.kl_estimator" or kl.get("type") != "reward":  # there it is k1
        _set(values, NAMES[old], value)
    return True


def old_parts(key: str, value: Any) -> dict[str, Any]:
    """The values below a parameter of 0.1, or a section with one, by their dotted names; empty for one of now.

    >>> old_parts("rl.critic", {"lr": 1e-5}), old_parts("rl.importance", {"kind": "masked"}), old_parts("rl.steps", 9)
    ({'rl.critic': {}, 'rl.critic.lr': 1e-05}, {'rl.importance.kind': 'masked'}, {})
    """
    inner = value.items() if isinstance(value, Mapping) else ()
    if is_old(key, value) or any(is_old(f"{key}.{name}", part) for name, part in inner):
        return _leaves(key, value)
    return {}


def _leaves(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or key not in ("rl.critic", "rl.verl", "rl.curriculum", "rl.importance"):
        return {key: value}
    parts = {f"{key}.{name}": _without_muons(part) for name, part in value.items()}
    return {key: {}, **parts} if key == "rl.critic" else parts


def _without_permutations(deduplicate: Mapping[str, Any]) -> dict[str, Any]:
    """Without the number of MinHash's functions, which the search for near-duplicates has no use for now."""
    near = deduplicate.get("near")
    if not isinstance(near, Mapping):
        return dict(deduplicate)
    return {**deduplicate, "near": {key: value for key, value in near.items() if key != "permutations"}}


def _without_muons(optimizer: Any) -> Any:
    """An optimizer without the scale that had no effect on AdamW."""
    if not isinstance(optimizer, Mapping) or optimizer.get("type") != "adamw":
        return optimizer
    return {name: value for name, value in optimizer.items() if name != "adamw_scale"}


def _axis(key: str, axis: Any) -> Any:
    if isinstance(axis, Mapping) and isinstance(axis.get("values"), Sequence):
        return {**axis, "values": [new_value(NAMES.get(key, key), value) for value in axis["values"]]}
    return axis


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    section = mapping_at(values, above)
    section[last] = merge(section.get(last), value)
