"""What an experiment is composed of: data x model x method x hardware, and presets, from params/experiment.yaml, the
command line or a form.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl.compose.names import KINDS, PRESETS, Layer, file_names, layer_of, preset_layer
from mathrl.core.errors import UserError
from mathrl.core.paths import is_group
from mathrl.params.load import read_yaml
from mathrl.params.messages import did_you_mean

FILE = "experiment.yaml"


@dataclass(frozen=True)
class Composition:
    """The choices: Composition({"data": "gsm8k", "method": "grpo"}, ("long",))."""

    groups: Mapping[str, str] = field(default_factory=dict)
    presets: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((*self.words(), self.presets))

    def words(self) -> list[str]:
        """["data=gsm8k", "method=grpo"], without the presets."""
        return [f"{kind}={self.groups[kind]}" for kind in KINDS if kind in self.groups]

    def over(self, below: "Composition") -> "Composition":
        """Both as one: these groups replace those below of the same kind, these presets come after those below."""
        presets = (*(name for name in below.presets if name not in self.presets), *self.presets)
        return Composition({**below.groups, **self.groups}, presets)

    def values(self) -> dict[str, Any]:
        """As params/experiment.yaml has it."""
        groups = {kind: self.groups[kind] for kind in KINDS if kind in self.groups}
        return {**groups, **({PRESETS: list(self.presets)} if self.presets else {})}


def read_composition(folder: Path) -> Composition:
    """The composition of a project; nothing where params/experiment.yaml is missing.

    Raises:
        UserError: an unknown key, or a value that is no name.
    """
    file = folder / FILE
    if not file.is_file():
        return Composition()
    values = read_yaml(file)
    for key, value in values.items():
        if key not in (*KINDS, PRESETS):
            raise UserError(
                f"{file}: {key}: unknown{did_you_mean(str(key), (*KINDS, PRESETS))}; write {', '.join(KINDS)} or "
                "presets"
            )
        if key in KINDS and (not isinstance(value, str) or not value.strip()):
            raise UserError(f"{file}: {key}: write a name, such as {key}: {_EXAMPLES[key]}, found {value!r}")
        if key == PRESETS and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            raise UserError(f"{file}: presets: write a list of names, such as presets: [demo], found {value!r}")
    groups = {kind: values[kind].strip() for kind in KINDS if kind in values}
    return Composition(groups, tuple(values.get(PRESETS) or ()))


_EXAMPLES = {"data": "gsm8k", "model": "Qwen/Qwen2.5-0.5B-Instruct", "method": "grpo", "hardware": "1x24GB"}


def split_choices(overrides: Iterable[str]) -> tuple[Composition, list[str]]:
    """Groups, which are key=value without a dot in the key, apart from overrides of parameters.

    Example: ["data=gsm8k", "rl.steps=9"] -> (Composition({"data": "gsm8k"}), ["rl.steps=9"]).

    Raises:
        UserError: a choice without a name.
    """
    groups: dict[str, str] = {}
    rest = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not is_group(override):
            rest.append(override)
        elif not value.strip():
            raise UserError(f"{override!r}: write a name, such as {key.strip()}={_EXAMPLES[key.strip()]}")
        else:
            groups[key.strip()] = value.strip()
    return Composition(groups), rest


def preset_names(folder: Path) -> list[str]:
    """The presets of the package and of the project `folder`."""
    return list(file_names(folder, PRESETS))


def named_presets(preset: str | None) -> tuple[str, ...]:
    """
    >>> named_presets("gsm8k+dapo"), named_presets(None)
    (('gsm8k', 'dapo'), ())
    """
    return tuple(preset.split("+")) if preset else ()


@dataclass(frozen=True)
class Composed:
    """The layers of a project's composition and of the command line's, and a line for each choice that was replaced."""

    project: Sequence[Layer]
    chosen: Sequence[Layer]
    groups: Mapping[str, str]
    """The group of each kind that applies."""
    notes: Sequence[str]


def compose(folder: Path, chosen: Composition = Composition()) -> Composed:
    """The layers of a project with the choices of the command line.

    A chosen group replaces the project's of its kind. Of two presets that name a group the later one counts; a group
    that is named by itself counts more than a preset's.

    Raises:
        UserError: a name that is not there, with the nearest, or a wrong file.
    """
    notes: list[str] = []
    own = read_composition(folder)
    own_presets, own_groups = _presets(folder, own.presets, notes)
    new_presets, new_groups = _presets(folder, chosen.presets, notes)
    new = {**new_groups, **chosen.groups}
    old = {kind: name for kind, name in {**own_groups, **own.groups}.items() if kind not in new}
    kept = [layer for layer in own_presets if layer.source not in {preset.source for preset in new_presets}]
    project = [*(layer_of(kind, old[kind], folder) for kind in KINDS if kind in old), *kept]
    above = [*(layer_of(kind, new[kind], folder) for kind in KINDS if kind in new), *new_presets]
    groups = [layer for layer in (*project, *above) if not layer.source.startswith("preset ")]
    for layers in (groups, kept, new_presets):
        notes += _conflicts(layers)
    return Composed(project, above, {**old, **new}, notes)


def _presets(folder: Path, names: Sequence[str], notes: list[str]) -> tuple[list[Layer], dict[str, str]]:
    files = file_names(folder, PRESETS)
    layers: list[Layer] = []
    groups: dict[str, str] = {}
    for name in names:
        if name not in files:
            raise UserError(f"no preset {name!r}{did_you_mean(name, files)}; presets: {', '.join(files)}")
        layer, own = preset_layer(name, files[name])
        for kind, group in own.items():
            if groups.get(kind, group) != group:
                notes.append(f"presets: {name} replaces {kind}={groups[kind]} by {kind}={group}: the later one counts")
        groups |= own
        layers.append(layer)
    return layers, groups


def _conflicts(layers: Sequence[Layer]) -> Iterator[str]:
    """A line for each group, or each preset, that sets fields to other values than an earlier one."""
    for number, after in enumerate(layers):
        for before in layers[:number]:
            changed = list(replaced_values(before.sections, after.sections))
            if changed:
                what = "presets" if after.source.startswith("preset ") else "groups"
                short = after.source.removeprefix("preset "), before.source.removeprefix("preset ")
                yield f"{what}: {short[0]} replaces values of {short[1]}: {', '.join(changed)}"


def replaced_values(below: Mapping[str, Any], above: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What `above` replaces by another value, each with both where they are short.

    >>> list(replaced_values({"rl": {"steps": 1}}, {"rl": {"steps": 2, "ema": None}}))
    ['rl.steps 1 by 2']
    """
    for key, value in above.items():
        if key not in below or below[key] == value:
            continue
        if isinstance(value, Mapping) and isinstance(below[key], Mapping):
            yield from replaced_values(below[key], value, f"{path}{key}.")
        else:
            short = not any(isinstance(item, Mapping | list) for item in (below[key], value))
            yield f"{path}{key}" + (f" {below[key]} by {value}" if short else "")
