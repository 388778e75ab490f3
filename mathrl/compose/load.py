"""params/*.yaml → `Params`: presets and dotted overrides on top.

Later wins: the section files, then the presets from left to right (params/presets/<name>.yaml; "gsm8k+dapo" is two of
them), then the overrides.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.params.load import FOLDER, apply_override, dump_yaml, put_section, read_yaml, validate, without_removed
from mathrl.params.messages import did_you_mean
from mathrl.params.old_names import OldNames, new_key
from mathrl.params.paths import merge, written_at
from mathrl.params.schema import SECTIONS, Params

NO_PRESET = "none"  # what a flow's form has where no preset is chosen


@dataclass(frozen=True)
class Layers:
    """The values of params/ with the presets over them, before any override, and where each section's come from."""

    values: dict[str, Any]
    origin: dict[str, str]
    old: OldNames

    def params(self, overrides: Iterable[str] = ()) -> Params:
        """The parameters with dotted overrides; old names are understood, with a notice.

        Raises:
            UserError: values do not fit the schema; every error is in the message, with its file and field.
        """
        values, origin, old = self._overridden(overrides)
        old.report()
        return validate(values, origin)

    def value(self, key: str, overrides: Iterable[str] = ()) -> Any:
        """The parameter `section.key` with the overrides, as it is written; its default where it is written nowhere.

        Raises:
            UserError: a wrong override; where the parameter is written nowhere, also values that do not fit the schema.
            AttributeError: no such parameter.
        """
        overrides, path = list(overrides), new_key(key).split(".")
        written = written_at(self._overridden(overrides)[0], path)
        return reduce(getattr, path, self.params(overrides)) if written is None else written

    def _overridden(self, overrides: Iterable[str]) -> tuple[dict[str, Any], dict[str, str], OldNames]:
        values, origin, old = copy.deepcopy(self.values), dict(self.origin), self.old.copy()
        typed: set[str] = set()
        for override in overrides:
            name = apply_override(values, override, typed, old)
            origin[name] += f" + {override}"
        old.settle(values)
        return values, origin, old


def read_layers(folder: Path = FOLDER, preset: str | None = None, instead: Mapping[str, Any] | None = None) -> Layers:
    """The section files with the presets over them; `instead` has sections of a record to take instead of their files.

    Raises:
        UserError: a file is missing or not YAML, or a preset has an unknown section.
    """
    old = OldNames()
    values: dict[str, Any] = {name: {} for name in SECTIONS}
    origin = {}
    for name in SECTIONS:
        if instead and name in instead:
            origin[name] = f"{name} of the run"
            values[name] = without_removed(name, instead[name], origin[name])
        else:
            origin[name] = f"{folder}/{name}.yaml"
            put_section(values, name, read_yaml(folder / f"{name}.yaml"), old)
    for file in preset_files(folder, preset):
        for name, section in read_yaml(file).items():
            if name not in values:
                raise UserError(f"{file}: unknown section {name!r}; sections: {', '.join(SECTIONS)}")
            put_section(values, name, section, old)
            origin[name] += f" + {file.name}"
    return Layers(values, origin, old)


def load_params(
    folder: Path = FOLDER,
    *,
    preset: str | None = None,
    overrides: Iterable[str] = (),
    instead: Mapping[str, Any] | None = None,
) -> Params:
    """The resolved parameters of a workspace; `instead` has sections of a record to take instead of their files.

    Raises:
        UserError: a file is missing or not YAML, or values do not fit the schema; every error is in the
            message, with its file and field.
    """
    return read_layers(folder, preset, instead).params(overrides)


def preset_names(folder: Path = FOLDER) -> list[str]:
    return sorted(file.stem for file in (folder / "presets").glob("*.yaml"))


def preset_files(folder: Path, preset: str | None) -> list[Path]:
    """The files of a preset, or of several joined by "+", in their order.

    Raises:
        UserError: there is no preset of a name.
    """
    names = preset_names(folder)
    wanted = preset.split("+") if preset else []
    for name in wanted:
        if name not in names:
            raise UserError(f"no preset {name!r}{did_you_mean(name, names)}; presets: {', '.join(names)}")
    return [folder / "presets" / f"{name}.yaml" for name in wanted]


def preset_values(folder: Path, preset: str | None) -> dict[str, Any]:
    """The sections of the presets, later over earlier."""
    return reduce(merge, map(read_yaml, preset_files(folder, preset)), {})


def preset_conflicts(folder: Path, preset: str | None) -> list[str]:
    """A line for each two neighbouring presets that set the same fields differently; the later one's values are taken.

    Example: ["presets: dapo replaces values of gsm8k: rl.max_tokens 400 by 2048, curate.sources"].
    """
    lines = []
    files = preset_files(folder, preset)
    for number, after in enumerate(files[1:], 1):
        below: dict[str, Any] = reduce(merge, map(read_yaml, files[:number]), {})
        changed = list(_replaced(below, read_yaml(after)))
        if changed:
            earlier = "+".join(file.stem for file in files[:number])
            lines.append(f"presets: {after.stem} replaces values of {earlier}: {', '.join(changed)}")
    return lines


def _replaced(below: Mapping[str, Any], above: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What `above` replaces by another value, each with both where they are short."""
    for key, value in above.items():
        if key not in below or below[key] == value:
            continue
        if isinstance(value, Mapping) and isinstance(below[key], Mapping):
            yield from _replaced(below[key], value, f"{path}{key}.")
        else:
            short = not any(isinstance(item, Mapping | list) for item in (below[key], value))
            yield f"{path}{key}" + (f" {below[key]} by {value}" if short else "")


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
        write_text(file, dump_yaml(_with_changes(written[name], old[name], new[name])))
    return changed


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
