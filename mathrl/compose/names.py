"""Names of a composition that are no files: a model by its hub id or folder, data by a file, hardware by its memory.

The files of a composition: groups (data, model, method, hardware) and presets, with what each may set.

A group is `mathrl/compose/groups/KIND/NAME.yaml`, a preset `mathrl/compose/presets/NAME.yaml`; those of a project, in
params/KIND/NAME.yaml and params/presets/NAME.yaml, win over the package's of the same name. Each begins with a line of
`help` and has sections as params/ has them; the sections below `fresh` apply to a model of random weights alone.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.core.paths import GROUPS
from mathrl.params.load import read_yaml
from mathrl.params.messages import did_you_mean, near_path
from mathrl.params.paths import leaves, merge
from mathrl.params.schema import SAMPLING, SECTIONS

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
    found = {file.stem: file for place in places for file in place.glob("[!.]*.yaml")}  # .#NAME.yaml is Emacs's lock
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
        for path, _ in leaves(part):
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


CHAT = re.compile(r"instruct|chat|(^|[-_])it($|[-_])", re.IGNORECASE)
BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
MEMORY = re.compile(r"^(?:(\d+)x)?(\d+)x(\d+(?:\.\d+)?)\s*(GB|GiB)$", re.IGNORECASE)
LOOKED_AT = 500  # rows from which the fields of a file are guessed
DATA_FILE = re.compile(r"\.(jsonl?|ndjson|csv|tsv|parquet|arrow)(\.(gz|zst|bz2|xz))?$", re.IGNORECASE)
LENGTHS = ("prompt.max_tokens", *(f"{section}.max_tokens" for section in SAMPLING))


def layer_of(kind: str, name: str, folder: Path) -> Layer:
    """The values of a choice, such as data=gsm8k+math or hardware=1x24GB.

    Raises:
        UserError: no such name, with the nearest, or a file of a group that is wrong.
    """
    files = file_names(folder, kind)
    if name in files:
        return group_layer(kind, name, files[name])
    if kind == "model":
        return _model(name, files)
    if kind == "hardware":
        return _hardware(name, files)
    if kind == "data":
        return _data(name, folder, files)
    raise UserError(f"method={name}: no such method{did_you_mean(name, files)}; methods: {_list_names(files)}")


def _list_names(files: Mapping[str, Path]) -> str:
    return ", ".join(files) or "none"


# --- model


def _model(name: str, files: Mapping[str, Path]) -> Layer:
    """A hub id or a folder; a hub id that a group has as its path uses that group."""
    for other, file in files.items():
        section = read_yaml(file).get("model")
        base = section.get("base") if isinstance(section, Mapping) else None
        if isinstance(base, Mapping) and base.get("path") == name:
            layer = group_layer("model", other, file)
            return Layer(f"model={name}", layer.sections, layer.fresh)
    folder = Path(name).expanduser()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not folder.is_dir():
        raise UserError(
            f"model={name}: no such model{did_you_mean(name, files)}{near_path(folder) if '/' in name else ''}; write "
            f"one of {_list_names(files)}, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or a model folder"
        )
    base = {"type": "pretrained", "path": name}
    return Layer(f"model={name}", {"model": {"base": base}, "prompt": prompt_of(name)})


def prompt_of(name: str) -> dict[str, Any]:
    """The section prompt for a model: its chat template where it has one, else the question with an instruction."""
    template = _chat_template(Path(name).expanduser())
    if template is None and not CHAT.search(name.rpartition("/")[2]):
        return {"template": "boxed"}
    if template is not None and not template:
        return {"template": "boxed"}
    # A template that refuses system messages says so: Gemma's, for one.
    refuses = template is not None and re.search(r"system\s+role\s+not\s+supported", template, re.IGNORECASE)
    place = "instruction" if refuses or (template is None and "gemma" in name.lower()) else "system"
    return {"template": "chat", place: BOXED_INSTRUCTION}


def _chat_template(folder: Path) -> str | None:
    """The chat template of a model folder on this machine, "" where it has none; None of a model that is elsewhere."""
    if not folder.is_dir():
        return None
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError):
        return ""
    return json.dumps(template) if isinstance(template, list) else template or ""


# --- hardware


def hardware_of(name: str) -> Hardware | None:
    """The hardware that a name says: 2x8x80GB is 16 GPUs of 80 GB; laptop is the CPU; None of any other name."""
    if match := MEMORY.match(name.strip()):
        nodes, count, memory, unit = match.groups()
        size = float(memory) * (1 << 30 if unit.lower() == "gib" else 10**9)
        return Hardware("cuda", memory=int(size), count=int(nodes or 1) * int(count))
    return None


def _hardware(name: str, files: Mapping[str, Path]) -> Layer:
    found = hardware_of(name)
    if found is None or not found.count or not found.memory:
        raise UserError(
            f"hardware={name}: no such hardware{did_you_mean(name, files)}; write {_list_names(files)}, or GPUs x "
            "memory, such as 1x24GB, 8x80GB, or 2x8x80GB for two machines"
        )
    return Layer(f"hardware={name}", {"run": {"processes": found.count}, "rollout": {"vllm": {"sleep": True}}})


# --- data


def _data(name: str, folder: Path, files: Mapping[str, Path]) -> Layer:
    """Several data sets joined by +, each with its weight in the mixture after a colon, or one file."""
    known = any(part in files or Path(part).expanduser().exists() for part in re.split(r"(?::[^:/+]*)?\+", name))
    if Path(name).expanduser().exists() or (DATA_FILE.search(name) and not known):
        return Layer(f"data={name}", _file_sections(Path(name)))
    parts = [_split_weight(part, name) for part in name.split("+")]
    if len(parts) == 1 and parts[0][1] is None:
        raise UserError(
            f"data={name}: no such data{did_you_mean(name, files)}{near_path(Path(name)) if '/' in name else ''}; "
            f"write one of {_list_names(files)}, a file or folder of rows, or several joined by +, such as "
            "gsm8k:0.7+math:0.3"
        )
    layers = [layer_of("data", part, folder) for part, _ in parts]
    weights = [weight for _, weight in parts]
    return Layer(
        f"data={name}",
        _join_data([layer.sections for layer in layers], weights),
        _join_data([merge(layer.sections, layer.fresh) for layer in layers], weights),
    )


def _split_weight(part: str, whole: str) -> tuple[str, float | None]:
    """
    >>> _split_weight("gsm8k:0.7", ""), _split_weight("math", "")
    (('gsm8k', 0.7), ('math', None))
    """
    name, colon, weight = part.strip().rpartition(":") if ":" in part else (part.strip(), "", "")
    try:
        number = float(weight) if colon else None
    except ValueError:
        number = -1.0
    if not name or (number is not None and not 0 < number < float("inf")):
        raise UserError(f"data={whole}: {part!r}: write NAME or NAME:WEIGHT, such as gsm8k:0.7+math:0.3")
    return name, number


def _join_data(all_sections: list[Mapping[str, Any]], weights: list[float | None]) -> dict[str, Any]:
    """Several data groups as one: all sources and benchmarks, components with their weights, the larger lengths."""
    joined: dict[str, Any] = {}
    all_sections = list(map(_by_source, all_sections))
    for sections in all_sections:
        joined = merge(joined, sections)
    every = [sections.get("curate", {}) for sections in all_sections]
    sources = _unique([source for curate in every for source in curate.get("sources", ())])
    joined["curate"] = {**joined.get("curate", {}), "sources": sources}
    _join_decontamination(joined["curate"], every)
    for share in ("dev_share", "test_share", "sft_share"):
        if shares := [part[share] for part in every if share in part]:
            joined["curate"][share] = max(shares)
    if any(part.get("on_bad_row") == "reject" for part in every):
        joined["curate"]["on_bad_row"] = "reject"
    components = [dict(c) for sections in all_sections for c in sections.get("mix", {}).get("components", ())]
    for number, weight in enumerate(weights):
        own = all_sections[number].get("mix", {}).get("components", ())
        total = sum(c.get("weight") or 0 for c in own) or 1.0
        for component in components:
            if weight is not None and component.get("weight") and any(c["source"] == component["source"] for c in own):
                component["weight"] = weight * component["weight"] / total
    joined["mix"] = {**joined.get("mix", {}), "components": components}
    benchmarks = _unique([b for sections in all_sections for b in sections.get("evaluate", {}).get("benchmarks", ())])
    if benchmarks:
        joined["evaluate"] = {**joined.get("evaluate", {}), "benchmarks": benchmarks}
    return {**joined, **merge(joined, _largest(all_sections))}


def _by_source(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sections with the component of a file by its source's name: * would take the problems of other sets too."""
    components = sections.get("mix", {}).get("components", ())
    names = [source["name"] for source in sections.get("curate", {}).get("sources", ())]
    if len(names) != 1 or not components:
        return sections
    own = [{**component, "source": names[0]} if component["source"] == "*" else component for component in components]
    return {**sections, "mix": {**sections["mix"], "components": own}}


def _join_decontamination(curate: dict[str, Any], every: list[Mapping[str, Any]]) -> None:
    """Every benchmark that one of the sets is held against, for all."""
    parts = [part["decontaminate"] for part in every if part.get("decontaminate")]
    if not parts:
        return
    names = _unique([name for part in parts for name in part.get("benchmarks", ())])
    merged: dict[str, Any] = {}
    for part in parts:
        merged = merge(merged, part)
    curate["decontaminate"] = {**merged, **({"benchmarks": names} if names else {})}
    against = [set(part["against"]) for part in parts if "against" in part]
    if against:  # splits of which one set says that its boilerplate repeats are left out
        kept = set.intersection(*against)
        curate["decontaminate"]["against"] = [split for split in ("dev", "test") if split in kept]


def _largest(all_sections: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest of each length that one of them has; what another leaves open is the default."""
    largest: dict[str, Any] = {}
    for path in LENGTHS:
        section, key = path.split(".")
        default = SECTIONS[section].model_fields[key].default
        found = [sections.get(section, {}).get(key, default) for sections in all_sections]
        if max(found) != default or any(each != default for each in found):
            largest.setdefault(section, {})[key] = max(found)
    return largest


def _unique(items: list[Any]) -> list[Any]:
    return [item for number, item in enumerate(items) if item not in items[:number]]


def _file_sections(path: Path) -> dict[str, Any]:
    """The sections for a person's own rows, with the fields that `mathrl inspect` would guess."""
    from mathrl.reading.row_files import list_files, read_rows  # this and what follows for a file alone
    from mathrl.reading.row_formats import source_fields
    from mathrl.reading.sniff import sniff
    from mathrl.reading.sources import absolute

    files = list_files(absolute(str(path)))
    rows = list(islice((row.values for file in files for row in read_rows(file) if not row.problem), LOOKED_AT))
    if not rows:
        raise UserError(f"data={path}: no row that can be read")
    shape = sniff(rows).shape
    name = re.sub(r"\W+", "_", path.stem.split(".")[0]).strip("_") or "mine"
    source = {"type": "file", "name": name, "path": str(path), "split": "rl", **source_fields(shape)}
    return {
        "curate": {
            "sources": [source],
            "test_share": 0.1,
            "dev_share": 0.05,
            "on_bad_row": "reject",
            "deduplicate": {"near": {}},
            "quality": {},
        },
        "mix": {"components": [{"source": "*", "weight": 1.0, "band": [0.05, 0.95]}]},
        "reward": {"extraction": "lenient"},
        "evaluate": {"benchmarks": ["test"], "extraction": "lenient"},
    }


def help_lines(kind: str, folder: Path) -> dict[str, str]:
    """The line of help of each group of a kind, by name."""
    return {name: help_of(file) for name, file in file_names(folder, kind).items()}
