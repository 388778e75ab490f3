"""The composition, params/*.yaml and overrides → `Params`, with who said each value.

Later wins: the schema's defaults, the project's composition (params/experiment.yaml: groups in the order data, model,
method, hardware, then presets from left to right), the section files params/<section>.yaml, the groups and then the
presets of the command line ("gsm8k+dapo" is two presets), dotted overrides. What none of them says follows from the
rest (`mathrl.compose.derived`).
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, cast

from mathrl.compose.checks import validate
from mathrl.compose.experiment import FILE, Composition, compose, named_presets, read_composition, split_choices
from mathrl.compose.names import Layer, hardware_of
from mathrl.compose.settings import Derived, fresh_rates, lengths_as_rl, registered_name, with_values, written_keys
from mathrl.core.code_values import RESOLVED, model_files
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.models.shapes import known_model
from mathrl.params.load import FOLDER, apply_override, dump_yaml, put_section, read_yaml, without_removed
from mathrl.params.old_names import OldNames, new_key
from mathrl.params.paths import merge, written_at
from mathrl.params.run import FreshModel, PretrainedModel
from mathrl.params.schema import SECTIONS, Params

NO_PRESET = "none"  # what a flow's form has where no preset is chosen
SET = "--set"


@dataclass(frozen=True)
class Layers:
    """The values of an experiment before any override, lowest layer first."""

    folder: Path
    composition: Composition
    """What the command line or a form chose."""
    layers: Sequence[Layer]
    recorded: Mapping[str, Any]
    """Sections of a record, which stand instead of all that is below them."""
    groups: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    _resolved: dict[tuple[str, ...], Params] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The parameters by their overrides: the steps of a recipe ask for the same ones several times."""

    def experiment_values(self) -> dict[str, Any]:
        """The groups and presets that apply, as params/experiment.yaml has them."""
        presets = self.composition.over(read_composition(self.folder)).presets
        return Composition(self.groups, presets).values()

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values of every section, as they are written."""
        return self.written_values()

    def params(self, overrides: Iterable[str] = ()) -> Params:
        """The parameters with dotted overrides, among which there may be groups such as data=gsm8k; old names are
        understood, with a notice.

        Raises:
            UserError: values do not fit the schema; every error is in the message, with its file and field.
        """
        chosen, settings = split_choices(overrides)
        if chosen.groups:
            return read_layers(self.folder, None, None, chosen.over(self.composition)).params(settings)
        if (key := tuple(settings)) not in self._resolved:
            values, old = self._merge(settings)
            old.report()
            params = validate(values, self._origin(settings), lambda key: self._who_said(key, settings))
            derived = {each.key: each.value for each in self._derive_from(params, values)}
            self._resolved[key] = with_values(params, derived)
        return self._resolved[key]

    def stated_params(self, overrides: Iterable[str] = ()) -> Params:
        """The parameters with what somebody said alone, and else the schema's defaults."""
        settings = list(overrides)
        return validate(self.written_values(settings), self._origin(settings))

    def derive(self, overrides: Iterable[str] = (), stages: Sequence[str] = ()) -> list[Derived]:
        """What follows from the values that somebody wrote.

        Raises:
            UserError: values do not fit the schema, or the stages do not fit the hardware of the composition.
        """
        settings = list(overrides)
        return self._derive_from(self.stated_params(settings), self.written_values(settings), stages)

    def _derive_from(self, params: Params, values: Mapping[str, Any], stages: Sequence[str] = ()) -> list[Derived]:
        base, written = params.model.base, set(written_keys(values))
        name = list(registered_name(params, written))
        if not isinstance(base, PretrainedModel):
            return [*lengths_as_rl(params, written), *fresh_rates(params, written), *name]
        from mathrl.compose.derived import derive  # the memory plan, which random weights do not need
        from mathrl.compose.fitting import FITTED

        hardware = hardware_of(self.groups.get("hardware", ""))
        found = derive(params, written, hardware, known_model(base), None, stages or FITTED, refuse=bool(stages))
        return [*found, *name]

    def value(self, key: str, overrides: Iterable[str] = ()) -> Any:
        """The parameter `section.key` with the overrides, as it is written; its default where it is written nowhere.

        Raises:
            UserError: a wrong override; where the parameter is written nowhere, also values that do not fit the schema.
            AttributeError: no such parameter.
        """
        overrides, path = list(overrides), new_key(key).split(".")
        written = written_at(self.written_values(overrides), path)
        if written is not None:
            return written
        try:
            params = self.params(overrides)
        except UserError:  # of another parameter, which is reported where the whole is checked
            params = self.params()
        return reduce(getattr, path, params)

    def is_fresh(self, overrides: Iterable[str] = ()) -> bool:
        """Whether the base model has random weights; a wrong override, which is reported later, counts for nothing."""
        written: dict[str, Any] = reduce(merge, (layer.sections.get("model", {}) for layer in self.layers), {})
        values = {"model": copy.deepcopy(dict(self.recorded.get("model", written)))}
        for override in overrides:
            if override.startswith("model."):
                try:
                    apply_override(values, override)
                except UserError:
                    continue
        base = values["model"].get("base")
        return not isinstance(base, dict) or base.get("type", FreshModel().type) == FreshModel().type

    def said_by(self, overrides: Iterable[str] = ()) -> dict[str, str]:
        """Who said each value that somebody wrote, by dotted key: {"rl.steps": "params/rl.yaml"}."""
        settings = list(overrides)
        said: dict[str, str] = {}
        parts = self._parts(self.is_fresh(settings))
        for key in _leaves(self.written_values(settings)):
            source = next((source for source, sections in reversed(parts) if _has(sections, key)), SET)
            said[".".join(key)] = source
        for override in settings:
            name = override.partition("=")[0].strip().removesuffix("+").strip()
            said |= {key: SET for key in said if key == name or key.startswith(f"{name}.")}
        return said | {each.key: f"derived: {each.reason}" for each in self.derive(settings)}

    def _who_said(self, key: str, settings: Sequence[str]) -> str:
        """Who said the value of a key, an override by its own words; "" where nobody did."""
        for override in reversed(settings):
            name = new_key(override.partition("=")[0].strip().removesuffix("+").strip())
            if key == name or key.startswith(f"{name}."):
                return override
        path = tuple(key.split("."))
        parts = reversed(self._parts(self.is_fresh(settings)))
        return next((source for source, sections in parts if _has(sections, path)), "")

    def _parts(self, fresh: bool) -> list[tuple[str, Mapping[str, Any]]]:
        parts: list[tuple[str, Mapping[str, Any]]] = []
        for layer in self.layers:
            parts.append((layer.source, layer.sections))
            if fresh and layer.fresh:
                parts.append((layer.source, layer.fresh))
        return parts

    def written_values(self, overrides: Iterable[str] = ()) -> dict[str, Any]:
        """What somebody wrote, of every section: groups, presets, files and the overrides, by the names of now."""
        return self._merge(list(overrides))[0]

    def _merge(self, settings: Sequence[str]) -> tuple[dict[str, Any], OldNames]:
        fresh = self.is_fresh(settings)
        if fresh not in self._below:
            self._below[fresh] = self._without_overrides(fresh)
        values, old = copy.deepcopy(self._below[fresh])
        typed = set[str]()
        for override in settings:
            apply_override(values, override, typed, old)
        old.settle(values)
        return values, old

    @cached_property
    def _below(self) -> dict[bool, tuple[dict[str, Any], OldNames]]:
        """What is below the overrides, by whether weights are random: steps of a recipe differ in overrides alone."""
        return {}

    def _without_overrides(self, fresh: bool) -> tuple[dict[str, Any], OldNames]:
        values: dict[str, Any] = {name: {} for name in SECTIONS}
        old = OldNames()
        for source, sections in self._parts(fresh):
            for name, section in sections.items():
                if source == RECORDED:
                    values[name] = section
                else:
                    put_section(values, name, section, old)
        return values, old

    def _origin(self, settings: Sequence[str]) -> dict[str, str]:
        """Where the values of each section come from: {"rl": "preset demo + params/rl.yaml + rl.steps=9"}."""
        parts = self._parts(self.is_fresh(settings))
        origin = {}
        for name in SECTIONS:
            own = [f"{name} of the run" if s == RECORDED else s for s, sections in parts if sections.get(name)]
            own = own or [f"{self.folder}/{name}.yaml"]  # an override is never the first: it may have a secret
            own += [override for override in settings if override.split(".")[0].strip() == name]
            origin[name] = " + ".join(dict.fromkeys(own))
        return origin


RECORDED = "the run"


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, str(key)))
        elif above:
            yield (*above, str(key))


def _has(values: Any, key: tuple[str, ...]) -> bool:
    for part in key:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def read_layers(
    folder: Path = FOLDER,
    preset: str | None = None,
    instead: Mapping[str, Any] | None = None,
    chosen: Composition | None = None,
) -> Layers:
    """The layers of a project, with the presets and the groups of the command line over them.

    Args:
        instead: Sections of a record to take instead of all that is below the command line's choices.
        chosen: Groups and presets of the command line; `preset` adds to them.

    Raises:
        UserError: a file that is not YAML, an unknown name, or a preset with an unknown section.
    """
    chosen = Composition(presets=named_presets(preset)).over(chosen or Composition())
    composed = compose(folder, chosen)
    recorded = {name: without_removed(name, section, f"{name} of the run") for name, section in (instead or {}).items()}
    files = {name: folder / f"{name}.yaml" for name in SECTIONS if name not in recorded}
    written = [Layer(str(file), {name: read_yaml(file)}) for name, file in files.items() if file.is_file()]
    layers = [*composed.project, *written, *([Layer(RECORDED, recorded)] if recorded else []), *composed.chosen]
    return Layers(folder, chosen, layers, recorded, composed.groups, composed.notes)


def load_params(
    folder: Path = FOLDER,
    *,
    preset: str | None = None,
    overrides: Iterable[str] = (),
    instead: Mapping[str, Any] | None = None,
) -> Params:
    """The resolved parameters of a workspace; `instead` has sections of a record to take instead of their files.

    Among the overrides there may be groups, such as data=gsm8k.

    Raises:
        UserError: a name is unknown, a file is not YAML, or values do not fit the schema; every error is in the
            message, with its file and field.
    """
    chosen, settings = split_choices(overrides)
    return read_layers(folder, preset, instead, chosen).params(settings)


def choice_notes(folder: Path, preset: str | None, overrides: Iterable[str] = ()) -> list[str]:
    """A line for each two groups, or two presets, that set the same fields differently; the later one's are taken.

    Example: ["presets: dapo replaces values of gsm8k: rl.max_tokens 400 by 2048, curate.sources"].
    """
    chosen, _ = split_choices(overrides)
    return list(read_layers(folder, preset, None, chosen).notes)


def write_experiment(folder: Path, preset: str | None, overrides: Iterable[str]) -> Params:
    """Write choices and overrides into a project: its params/experiment.yaml gets the groups and presets, its section
    files what then differs. Returns the parameters.

    Raises:
        UserError: as `load_params`.
    """
    chosen, settings = split_choices(overrides)
    layers = read_layers(folder, preset, None, chosen)
    composed = layers.experiment_values()
    if composed != read_layers(folder).experiment_values():
        write_text(folder / FILE, dump_yaml(composed))
    # What follows from the rest follows again, and is written nowhere.
    write_params(read_layers(folder).stated_params(), layers.stated_params(settings), folder)
    return load_params(folder)


def write_params(before: Params, after: Params, folder: Path = FOLDER) -> list[str]:
    """Write the values of `after` that differ from `before` into the files; return the changed sections' names.

    No defaults are written, so that DVC sees no difference between a run with overrides and an edit of the files.
    """
    old, new = before.model_dump(mode="json", by_alias=True), after.model_dump(mode="json", by_alias=True)
    changed = [name for name in SECTIONS if old[name] != new[name]]
    for name in changed:
        file = folder / f"{name}.yaml"
        written: dict[str, Any] = {section: {} for section in SECTIONS}
        put_section(written, name, read_yaml(file) if file.exists() else {}, OldNames())
        write_text(file, dump_yaml(_with_changes(_of_types(written[name], old[name]), old[name], new[name])))
    return changed


def _of_types(written: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """`written` with the types that hold: an old name, which has none, was put where the default's type is.

    >>> _of_types({"optimizer": {"type": "adamw", "lr": 1}}, {"optimizer": {"type": "muon", "lr": 1}})
    {'optimizer': {'type': 'muon', 'lr': 1}}
    """
    typed = dict(written)
    for key, value in written.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            typed[key] = _of_types(value, before)
            if "type" in value and "type" in before:
                typed[key]["type"] = before["type"]
    return typed


def _with_changes(written: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of `written` with the values that differ between `old` and `new`; a mapping with other keys is replaced.

    >>> _with_changes({"lr": 1}, {"lr": 1, "steps": 2, "ema": 0.9}, {"lr": 1, "steps": 3, "ema": 0.9})
    {'lr': 1, 'steps': 3}
    """
    changed = dict(written)
    for key, value in new.items():
        before, in_file = old.get(key), written.get(key, {})
        in_file = {"type": in_file} if isinstance(in_file, str) and isinstance(value, Mapping) else in_file
        maps = isinstance(value, Mapping), isinstance(before, Mapping), isinstance(in_file, Mapping)
        if value == before:
            continue
        if all(maps) and value.keys() == cast(Any, before).keys():
            changed[key] = _with_changes(in_file, cast(Any, before), value)
        else:
            changed[key] = value
    return changed


HEADER = "# Made from params/ by the stage resolve: change params/, not this file.\n"


def write_resolved(checkout: Path = Path()) -> None:
    """Write resolved.yaml of a checkout, unless it has these values already.

    `model.base.files` in it is the digest of a model folder on this machine: a stage that reads the model runs again
    when the folder's files change. Of a folder that is not on this machine it is the one that code.yaml has.

    Raises:
        UserError: wrong parameters.
    """
    file, values = checkout / RESOLVED, load_params(checkout / FOLDER).model_dump(mode="json", by_alias=True)
    base = values["model"]["base"]
    if files := model_files(base, checkout):
        base["files"] = files
    text = HEADER + dump_yaml(values)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.unlink(missing_ok=True)  # it may be a link into DVC's cache
        write_text(file, text)
