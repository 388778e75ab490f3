"""The files of a composition: groups (data, model, method, hardware) and presets, with what each may set.

A group is `mathrl/compose/groups/KIND/NAME.yaml`, a preset `mathrl/compose/presets/NAME.yaml`; those of a project, in
params/KIND/NAME.yaml and params/presets/NAME.yaml, win over the package's of the same name. Each begins with a line of
`help` and has sections as params/ has them; the sections below `fresh` apply to a model of random weights alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.paths import GROUPS
from mathrl.params.final_values import SAMPLING
from mathrl.params.load import read_yaml
from mathrl.params.messages import did_you_mean
from mathrl.params.schema import SECTIONS

KINDS = GROUPS
PRESETS = "presets"
HERE = Path(__file__).parent
HELP, FRESH = "help", "fresh"
TRAINED = ("sft", "rl", "dpo", "reward_model")
# The parameters that a group of each kind may set, with all that is below them.
MAY_SET: dict[str, tuple[str, ...]] = {
    "data": (
        "curate",
        "mix",
        "reward",
        "evaluate.benchmarks",
        "evaluate.extraction",
        "prompt.max_tokens",
        "prompt.template",
        *(f"{section}.max_tokens" for section in SAMPLING),
    ),
    "model": (
        "model",
        "prompt",
        *(f"{section}.{field}" for section in TRAINED for field in ("optimizer", "lora")),
        "rl.ema",
        "rl.advantage.critic",
        "health.lr",
    ),
    "method": (
        *TRAINED,
        "difficulty",
        "sample",
        "reward.parts",
        "reward.judge",
        "health",
        *(f"evaluate.{field}" for field in ("samples", "ks", "temperature", "top_p")),
        "curate.sft_share",
    ),
    "hardware": (
        "run.device",
        "run.processes",
        "training",
        "rollout",
        *(f"{section}.tokens_per_microbatch" for section in TRAINED),
        *(f"{section}.gradient_checkpointing" for section in ("sft", "rl")),
    ),
}


@dataclass(frozen=True)
class Layer:
    """Values with the one who said so.

    Example:
        Layer("method=dapo", {"rl": {"clip_high": 0.28}})
    """

    source: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    fresh: Mapping[str, Any] = field(default_factory=dict)
    """Sections for a model of random weights alone; they go over `sections`."""


def file_names(folder: Path, kind: str) -> dict[str, Path]:
    """The files of a kind of group, or the presets, by name: the package's, and over them those of params/ `folder`."""
    places = (HERE / PRESETS if kind == PRESETS else HERE / "groups" / kind, folder / kind)
    found = {file.stem: file for place in places for file in place.glob("*.yaml")}
    return dict(sorted(found.items()))


def help_of(file: Path) -> str:
    """The line of help with which the file of a group or preset begins."""
    return str(read_yaml(file).get(HELP, ""))


def group_layer(kind: str, name: str, file: Path) -> Layer:
    """A group's values.

    Raises:
        UserError: no line of help, an unknown section, or one that this kind of group may not set.
    """
    values = read_yaml(file)
    sections, fresh = _sections(values, file)
    for part in (sections, fresh):
        for path in _paths(part):
            if not any(path == allowed or path.startswith(f"{allowed}.") for allowed in MAY_SET[kind]):
                raise UserError(
                    f"{file}: {path}: a {kind} group may not set this, so that each {kind} goes with every other "
                    f"choice; it may set {', '.join(MAY_SET[kind])}"
                )
    return Layer(f"{kind}={name}", sections, fresh)


def preset_layer(name: str, file: Path) -> tuple[Layer, dict[str, str]]:
    """A preset's own values, and the groups that it names; a text below `model` is a group, a mapping the section.

    Raises:
        UserError: no line of help, or an unknown section.
    """
    values = read_yaml(file)
    groups = {kind: values.pop(kind) for kind in KINDS if isinstance(values.get(kind), str)}
    sections, fresh = _sections(values, file)
    return Layer(f"preset {name}", sections, fresh), groups


def _sections(values: dict[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    values = dict(values)
    help_text = values.pop(HELP, None)
    if not isinstance(help_text, str) or not help_text.strip():
        raise UserError(f"{file}: help: missing; begin with a line such as `help: GSM8K, grade-school word problems`")
    fresh = values.pop(FRESH, None) or {}
    for part, above in ((values, ""), (fresh, f"{FRESH}.")):
        if not isinstance(part, Mapping):
            raise UserError(f"{file}: {above.rstrip('.')}: expected sections with their values")
        for name, section in part.items():
            if name not in SECTIONS:
                raise UserError(
                    f"{file}: unknown section {above}{name}{did_you_mean(str(name), SECTIONS)}; sections: "
                    f"{', '.join(SECTIONS)}"
                )
            if not isinstance(section, Mapping):
                raise UserError(f"{file}: {above}{name}: expected a mapping of keys to values, found {section!r}")
    return values, dict(fresh)


def _paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted paths of the values: {"rl": {"loss": {"high": 0.28}}} -> rl.loss.high."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
