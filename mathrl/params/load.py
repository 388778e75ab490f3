"""YAML 1.2 → values → `Params`: merging, dotted overrides, and all errors at once."""

import copy
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import SafeRepresenter

from mathrl.core.errors import UserError
from mathrl.params.messages import did_you_mean, messages, parameters
from mathrl.params.old_names import OldNames, new_key
from mathrl.params.other_trainers import ours
from mathrl.params.paths import choose_type, merge, name_types, place_at, written_at
from mathrl.params.schema import READS, SECTIONS, Params
from mathrl.params.section import Section

FOLDER = Path("params")
MOST_PATHS = 4  # in a suggestion
S = TypeVar("S", bound=Section)


def put_section(values: dict[str, Any], name: str, section: Any, old: OldNames) -> None:
    """Merge a section of a file over `values`; what has an old name goes where it is now."""
    if not isinstance(section, Mapping):
        values[name] = section
        return
    kept, renamed = old.split(name, section)
    values[name] = merge(values[name], kept)
    if name == "sweep" and "space" in kept:  # a space is one value: what it leaves out is not varied
        values[name]["space"] = kept["space"]
    for key, value in renamed.items():
        if written_at({name: kept}, new_key(key).split(".")) is None:  # else both names are written
            old.place(values, key, value)
    old.settle(values)
    name_types(values)


def validate_section(kind: type[S], values: Mapping[str, Any], where: str) -> S:
    """The section `kind` with these values, which come from `where`.

    Raises:
        UserError: values do not fit; every error is in the message, with its field.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, path)) or kind.__name__}: {text}" for _, path, text in messages(error, kind))
        raise UserError(f"{where}: {'; '.join(wrong)}") from None


def without_removed(section: str, recorded: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A record's section under the names of now, without what no longer exists, so that older records open; a notice
    names both.

    Example: ("rl", {"lr": 0.1, "rollout_ahead": 0}, "rl-77aa-1") -> {"optimizer": {"lr": 0.1, …}}.
    """
    values: dict[str, Any] = {name: {} for name in SECTIONS}
    old = OldNames()
    put_section(values, section, copy.deepcopy(dict(recorded)), old)
    old.waiting.clear()  # they had no effect
    old.report()
    kept: dict[str, Any] = values[section]
    try:
        SECTIONS[section].model_validate(kept)
    except ValidationError as error:
        unknown = [path for kind, path, _ in messages(error, SECTIONS[section]) if kind == "extra_forbidden"]
        for *above, last in unknown:
            parent: Any = kept
            for key in above:
                parent = parent[key]
            del parent[last]
        if unknown:
            names = ", ".join(".".join(map(str, (section, *path))) for path in unknown)
            print(f"{where}: ignored, since they no longer exist: {names}", file=sys.stderr)
    return kept


def stage_params(params: Params, stage: str) -> Params:
    """The parameters with only the sections that a stage reads; access to another one is an AttributeError.

    So a stage cannot depend on a parameter that DVC does not watch.
    """
    subset = _StageParams.model_construct(**dict(params))
    fields = {name: field.alias or name for name, field in Params.model_fields.items()}
    subset.__dict__ = {name: getattr(params, name) for name, section in fields.items() if section in READS[stage]}
    return subset


class _StageParams(Params):
    def __getattr__(self, name: str) -> Any:
        if name in Params.model_fields:
            raise AttributeError(f"the stage reads section {name}: add it to READS and to dvc.yaml")
        return super().__getattr__(name)  # type: ignore[misc]


def apply_override(
    values: dict[str, Any], override: str, typed: set[str] | None = None, old: OldNames | None = None
) -> str:
    """Set `section.key[.key|.index…]=value` in place; the value is YAML 1.2 (2e-4 is a number).

    `section.key+=[…]` appends to a list. Another `type` of a section that has several (model.base.type=pretrained)
    drops the fields that only the old one has; `typed` collects the keys of overrides, which keep their values then.

    Returns the section's name.

    Raises:
        UserError: no "=", an unknown section, an index outside its list, or no list to append to.
    """
    typed, old = set() if typed is None else typed, OldNames() if old is None else old
    path, equals, text = override.partition("=")
    appended = path.rstrip().endswith("+")
    keys = path.strip().removesuffix("+").strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise UserError(f"override {override!r}: write section.key=value{_with_section(keys[0], text, equals)}")
    if keys[0] not in values:
        raise UserError(
            f"override {override!r}: unknown section {keys[0]!r}{did_you_mean(keys[0], SECTIONS)}; "
            f"sections: {', '.join(SECTIONS)}"
        )
    value, key = parse_yaml(text, f"override {override!r}"), ".".join(keys)
    if key == "sweep.space" and isinstance(value, Mapping):
        value = old.split("sweep", {"space": value})[0]["space"]
    if renamed := old.parts(key, value):
        typed.add(new_key(key))
        for name, part in renamed.items():
            old.place(values, name, part)
        return keys[0]
    place = place_at(values, keys[:-1])
    if place is not None and place.tags is not None and place.tags.field == keys[-1] and not appended:
        choose_type(values, keys[:-1], value, typed)
        return keys[0]
    _set_at(values, keys, value, override, appended)
    typed.add(key)
    return keys[0]


def typed_keys(overrides: Iterable[str]) -> set[str]:
    """The parameters that overrides name, those within a mapping too; an old name counts for what it is now.

    >>> sorted(typed_keys(["rl.lr=0.02", "sft.optimizer={type: muon, lr: 0.02}"]))
    ['rl.optimizer.lr', 'sft.optimizer', 'sft.optimizer.lr', 'sft.optimizer.type']
    """
    keys: set[str] = set()
    for override in overrides:
        key, _, text = override.partition("=")
        key = key.strip()
        keys.add(new_key(key))
        if "{" in text:
            value = parse_yaml(text, f"override {override!r}")
            keys |= {new_key(inner) for inner in _inner_keys(value, key)}
    return keys


def _inner_keys(value: Any, above: str) -> Iterator[str]:
    for name, part in value.items() if isinstance(value, Mapping) else ():
        yield f"{above}.{name}"
        yield from _inner_keys(part, f"{above}.{name}")


def _set_at(values: dict[str, Any], keys: list[str], value: Any, override: str, appended: bool) -> None:
    here: Any = values
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(here, list):
            if not key.isdigit() or int(key) >= len(here):
                where = ".".join(keys[:depth])
                raise UserError(
                    f"override {override!r}: {where} is a list of {len(here)}; write an index below it, or "
                    f"'{where}+=[…]' to append"
                )
            slot: Any = int(key)
        elif isinstance(here, dict):
            slot = key
            if not last and not isinstance(here.get(key), dict | list):
                # A bare name of a type becomes its mapping; of an unknown key the schema refuses the path.
                union = place_at(values, keys[: depth + 1]) if isinstance(here.get(key), str) else None
                here[key] = {union.tags.field: here[key]} if union is not None and union.tags is not None else {}
                if keys[depth + 1].isdigit() and (listed := _default_list(keys[: depth + 1])) is not None:
                    here[key] = listed
        else:
            raise UserError(f"override {override!r}: {'.'.join(keys[:depth])} is a single value, without keys")
        if not last:
            here = here[slot]
        elif appended:
            whole = here.get(slot) if isinstance(here, dict) else here[slot]
            whole = _default_list(keys) if whole is None else whole
            if not (isinstance(value, list) and isinstance(whole, list)):
                raise UserError(
                    f"override {override!r}: += appends a list, such as [{{…}}], to a list that this parameter is"
                )
            here[slot] = [*whole, *value]
        else:
            here[slot] = value


def _default_list(keys: list[str]) -> list[Any] | None:
    """The list that a parameter is by default; None of any other parameter."""
    here: Any = SECTIONS[keys[0]]
    for key in keys[1:]:
        info = here.model_fields.get(key) if hasattr(here, "model_fields") else None
        if info is None:
            return None
        here = info.get_default(call_default_factory=True, validated_data={})
    if not isinstance(here, list | tuple):
        return None
    return [item.model_dump(mode="json", by_alias=True) if isinstance(item, Section) else item for item in here]


def _with_section(name: str, value: str, equals: str) -> str:
    """What to write instead of a parameter without its section.

    >>> _with_section("learning_rate", "1e-6", "=")
    ': rl.optimizer.lr=1e-6 or sft.optimizer.lr=1e-6 or dpo.optimizer.lr=1e-6 or reward_model.optimizer.lr=1e-6'
    """
    paths = paths_of(name) if equals else []
    return (
        ": " + " or ".join(f"{path}={value}" for path in paths[:MOST_PATHS])
        if paths
        else ", such as rl.optimizer.lr=2e-4"
    )


def paths_of(name: str) -> list[str]:
    """The parameters of this name, or of what other trainers call so, in any section; first those used most.

    What RL has is looked for in every section: learning_rate is rl.optimizer.lr, sft.optimizer.lr, ….
    """
    known, meant = list(parameters(Params)), ours(name)
    section, _, rest = meant.partition(".")
    wanted = name if not meant else rest if section == "rl" else meant
    paths = [path for path in known if path == wanted or path.endswith(f".{wanted}")]
    places = {"rl": 0, "sft": 1}
    return sorted(
        paths, key=lambda path: (path.startswith("health."), path.count("."), places.get(path.split(".")[0], 2))
    )


def represent_text(representer: Any, text: str) -> Any:
    """A text for YAML: in double quotes where a folded line would lose one of two spaces, or a U+0085."""
    style = '"' if "  " in text or "\x85" in text else None
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


class _Representer(SafeRepresenter):
    pass


_Representer.add_representer(str, represent_text)


def dump_yaml(value: Any) -> str:
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(value, stream)
    return stream.getvalue()


@cache
def _parse_yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. A text is parsed once: a recipe reads the same 20 files for each of its steps."""
    try:
        return copy.deepcopy(_parse_yaml(text))
    except (YAMLError, ValueError, RecursionError) as error:  # also 2024-02-30, or a number of over 4300 digits
        raise UserError(f"{where}: not YAML ({' '.join(str(error).split())})") from None


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        value = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; run the command from the top of the project") from None
    except IsADirectoryError:
        raise UserError(f"{file}: this is a folder; write a file of this name, or rename the folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 ({error}); save it as UTF-8") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a mapping of keys to values")
    return value
