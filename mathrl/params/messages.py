"""Pydantic's errors, one sentence each: the field's path, what is wrong, and the nearest name."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError

from mathrl.params.section import SECRET, Section, Tags, annotation, tags_of

# Former parameters: what to write instead.
REPLACED = {
    "muon_lr": "lr for the matrices that Muon trains, and adamw_scale (AdamW's rate / lr) for the rest, both in "
    "optimizer: muon_lr 0.01 with lr 5e-4 is lr 0.01 with adamw_scale 0.05",
    **dict.fromkeys(
        ("prefetch", "rollout_ahead"),
        "asynchronous: {staleness: 1, pace: fixed} to sample one step ahead, with the same bits as prefetch: true; "
        "leave it out to sample after the update",
    ),
}
# Ways to change the distribution that is sampled, which the log-probs of a loss would have to follow.
UNSUPPORTED = {
    "dropout": "sampling has no dropout, so the update would train another policy than the one that sampled; "
    "regularise with rl.kl or a smaller lr (lora.dropout is of sft, dpo and reward_model)"
} | dict.fromkeys(
    ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    "responses are sampled from softmax(logits / temperature) as a whole, the distribution whose log-probs are "
    "trained on; leave it out (evaluate alone has a top_p)",
)
FEW = 12  # names that a message lists
Location = Sequence[int | str]


class Doubt(NamedTuple):
    """A value that does not suit the model: its parameter, what is wrong with it, and what to write instead."""

    key: str
    problem: str
    advice: str
    value: str


def messages(error: ValidationError, kind: Any) -> Iterator[tuple[str, Location, str]]:
    """The type, the location and the message of each error of the values that type `kind` refused.

    A location is the path as a user writes it, without the tags of unions that pydantic inserts.

    Example: ("extra_forbidden", ("rl", "lrr"), "unknown parameter (did you mean lr?)").
    """
    for item in error.errors():
        path, choices, union = _resolve(kind, item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            key = str(path[-1])
            others = union.members_with(key) if union is not None else []
            text = _of_other_types(others) if others else f"unknown parameter{unknown_hint(key, choices)}"
        elif item["type"] == "union_tag_invalid":
            tag, field = str(item["ctx"]["tag"]), item["ctx"]["discriminator"].strip("'")
            path = [*path, field]
            text = f"no {field} {tag!r}{did_you_mean(tag, choices)}; write one of {', '.join(choices)}"
        elif item["type"] == "union_tag_not_found":
            path = [*path, item["ctx"]["discriminator"].strip("'")]
            text = f"missing; write one of {', '.join(choices)}"
        elif item["type"] != SECRET and item["type"] != "missing":
            text += _describe_value(item["input"], text, _section_at(kind, item["loc"]))
        yield item["type"], path, text


def _of_other_types(tags: Sequence[str]) -> str:
    """
    >>> _of_other_types(["reinforce", "remax", "gae"]), _of_other_types(["gae"])
    ('unknown parameter (only types reinforce, remax and gae have it)', 'unknown parameter (only type gae has it)')
    """
    if len(tags) == 1:
        return f"unknown parameter (only type {tags[0]} has it)"
    return f"unknown parameter (only types {', '.join(tags[:-1])} and {tags[-1]} have it)"


def _describe_value(value: Any, text: str, section: type[Section] | None) -> str:
    """What was found: a value, or of a whole section the values of the fields that the message names."""
    if not isinstance(value, dict) or section is None:
        return f", found {value!r}"
    written = {
        name: value.get(name, info.get_default(call_default_factory=True, validated_data={}))
        for name, info in section.model_fields.items()
    }
    words = dict.fromkeys(word.rpartition(".")[2] for word in re.findall(r"\w+(?:\.\w+)*", text))
    shown = [f"{word} {_short(written[word])}" for word in words if word in written]
    return f", found {', '.join(shown)}" if shown else ""


def _short(value: Any) -> str:
    """
    >>> _short(None), _short({"lr": 1e-5}), _short("gae")
    ('null', '{…}', 'gae')
    """
    if isinstance(value, Section | dict):
        return "{…}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _resolve(kind: Any, location: Location) -> tuple[list[int | str], list[str], Tags | None]:
    """The location without tags, the valid names at its end (keys of a section, or tags of a union), and the union
    whose member lacks the key there."""
    path: list[int | str] = []
    union: Tags | None = None
    for position, part in enumerate(location):
        tags = tags_of(kind)
        if tags is not None and part in tags.members:
            kind, union = tags.members[str(part)], tags
            continue
        last = position == len(location) - 1
        section = section_of(kind)
        path.append(part)
        if section is not None:
            fields = {info.alias or name: info for name, info in section.model_fields.items()}
            if last and part not in fields:
                return path, list(fields), union
            kind = annotation(fields[str(part)]) if part in fields else None
        else:
            kind = item_of(kind)
        union = None
    tags = tags_of(kind)
    return path, list(tags.members) if tags else [], None


def tagged_at(kind: Any, path: Location) -> Tags | None:
    """The union at a path as a user writes it; None where there is none.

    Example: (Params, ["model", "base"]) -> Tags("type", {"fresh": FreshModel, "pretrained": PretrainedModel}).
    """
    return tags_of(_kind_at(kind, path))


def _section_at(kind: Any, location: Location) -> type[Section] | None:
    there = _kind_at(kind, location)
    return None if tags_of(there) else section_of(there)


def _kind_at(kind: Any, location: Location) -> Any:
    """The type at a location, which may contain the tags of unions; below a union without one that of the first member
    with the field."""
    for part in location:
        tags, section = tags_of(kind), section_of(kind)
        if tags is not None and part in tags.members:
            kind = tags.members[str(part)]
            continue
        if tags is not None:
            section = next((tags.members[tag] for tag in tags.members_with(str(part))), None)
        if section is not None:
            fields = {info.alias or name: info for name, info in section.model_fields.items()}
            kind = annotation(fields[str(part)]) if part in fields else None
        else:
            kind = item_of(kind)
    return kind


def section_of(kind: Any) -> type[Section] | None:
    """The section that a type is, alone or beside None."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    if get_origin(kind) in (Union, UnionType):
        sections = [member for member in get_args(kind) if section_of(member)]
        return section_of(sections[0]) if len(sections) == 1 else None
    return None


def item_of(kind: Any) -> Any:
    """The type of what a list or mapping holds; None where it holds nothing."""
    if get_origin(kind) is Annotated:
        return item_of(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next((item for member in get_args(kind) if (item := item_of(member)) is not None), None)
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[get_origin(kind) is dict]
    return None


def unknown_hint(key: str, names: Iterable[str]) -> str:
    """What to write instead of an unknown parameter: its successor, its name here, the nearest, or one of a few."""
    if key in UNSUPPORTED:
        return f": {UNSUPPORTED[key]}"
    if key in REPLACED:
        return f": write {REPLACED[key]}"
    from mathrl.params.other_trainers import ours_from  # it reads the whole schema, for an error alone

    names = list(names)
    meant = ours_from(key, names)
    near = f" (did you mean {meant}?)" if meant else did_you_mean(key, names)
    return near or (f"; write one of {', '.join(names)}" if len(names) <= FEW else "")


def parameters(kind: Any, above: str = "") -> Iterator[str]:
    """The dotted paths of all parameters of a section or of all sections, without those in lists; of a union those of
    all members.

    Example: parameters(Params) -> run.seed, run.device, …, rl.optimizer, rl.optimizer.type, rl.optimizer.lr, …
    """
    yield from dict.fromkeys(_parameters(kind, above))


def _parameters(kind: Any, above: str) -> Iterator[str]:
    tags, section = tags_of(kind), section_of(kind)
    for member in dict.fromkeys(tags.members.values()) if tags else [section] if section else []:
        for name, info in getattr(member, "model_fields", {}).items():
            path = f"{above}{info.alias or name}"
            yield path
            yield from _parameters(annotation(info), f"{path}.")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """ " (did you mean lr?)" for the nearest of the names; empty if none is near."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def near_path(path: Path) -> str:
    """As `did_you_mean`, for a file or folder that is not there: the nearest name beside it."""
    folder = path.expanduser().parent
    names = sorted(other.name for other in folder.iterdir()) if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""
