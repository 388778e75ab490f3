"""Pydantic's errors, one sentence each: the field's path, what is wrong, and the nearest name."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from mathrl.params.section import SECRET, Section

# Former parameters: what to write instead.
REPLACED = {
    "muon_lr": "lr beside it for the matrices that Muon trains, and optimizer.adamw_scale (AdamW's rate / lr) for the "
    "rest: muon_lr 0.01 with lr 5e-4 is lr 0.01 with adamw_scale 0.05",
    **dict.fromkeys(
        ("prefetch", "rollout_ahead"),
        "asynchronous: {staleness: 1, pace: fixed} to sample one step ahead, with the same bits as prefetch: true; "
        "leave it out to sample after the update",
    ),
}
# Ways to change the distribution that is sampled, which the log-probs of a loss would have to follow.
UNSUPPORTED = dict.fromkeys(
    ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    "responses are sampled from softmax(logits / temperature) as a whole, the distribution whose log-probs are "
    "trained on; leave it out (evaluate alone has a top_p)",
)
# Names in other programs (transformers, TRL, verl): what mathrl calls it; with a section where it is another one's.
MEANINGS = {
    **dict.fromkeys(("learning_rate", "rate", "actor_lr"), "lr"),
    **dict.fromkeys(("num_generations", "rollout_n", "n", "num_samples", "responses_per_prompt"), "group_size"),
    **dict.fromkeys(("beta", "kl", "kl_beta", "kl_loss_coef", "kl_weight", "kl_penalty"), "kl_coef"),
    **dict.fromkeys(("batch_size", "train_batch_size", "per_device_train_batch_size"), "prompts_per_step"),
    **dict.fromkeys(("max_new_tokens", "max_completion_length", "max_response_length", "max_length"), "max_tokens"),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps", "total_training_steps", "iterations"), "steps"),
    **dict.fromkeys(("epsilon", "eps", "cliprange", "clip_ratio", "clip_ratio_low", "clip_eps"), "clip_low"),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high"), "clip_high"),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("entropy_coeff", "ent_coef"), "entropy_coef"),
    **dict.fromkeys(("loss_type", "loss"), "policy_loss"),
    **dict.fromkeys(("eval_steps", "test_freq"), "eval_every"),
    **dict.fromkeys(("save_steps", "save_freq"), "checkpoint_every"),
    **dict.fromkeys(("num_gpus", "n_gpus", "gpus", "nproc_per_node", "world_size"), "run.processes"),
    **dict.fromkeys(("max_prompt_length", "max_prompt_tokens"), "prompt.max_tokens"),
    **dict.fromkeys(("system_prompt",), "prompt.system"),
    **dict.fromkeys(("model_name_or_path", "model_path", "model_name"), "model.base.path"),
    **dict.fromkeys(("dtype", "bf16", "torch_dtype"), "model.precision"),
    **dict.fromkeys(("gpu_memory_utilization", "vllm_gpu_memory_utilization"), "rollout.vllm.memory_share"),
    **dict.fromkeys(("tensor_parallel_size", "tensor_model_parallel_size"), "rollout.vllm.tensor_parallel"),
}
Location = Sequence[int | str]


def messages(error: ValidationError, kind: Any) -> Iterator[tuple[str, Location, str]]:
    """The type, the location and the message of each error of the values that type `kind` refused.

    A location is the path as a user writes it, without the tags of unions that pydantic inserts.

    Example: ("extra_forbidden", ("rl", "lrr"), "unknown parameter (did you mean lr?)").
    """
    for item in error.errors():
        path, choices = _resolve(kind, item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"unknown parameter{unknown_hint(str(path[-1]), choices)}"
        elif item["type"] == "union_tag_invalid":
            tag, field = str(item["ctx"]["tag"]), item["ctx"]["discriminator"].strip("'")
            path = [*path, field]
            text = f"no {field} {tag!r}{did_you_mean(tag, choices)}; write one of {', '.join(choices)}"
        elif item["type"] == "union_tag_not_found":
            path = [*path, item["ctx"]["discriminator"].strip("'")]
            text = f"missing; write one of {', '.join(choices)}"
        elif item["type"] != SECRET and item["type"] != "missing":
            text += _found(item["input"], text, _section_at(kind, item["loc"]))
        yield item["type"], path, text


def _found(value: Any, text: str, section: type[Section] | None) -> str:
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


def _resolve(kind: Any, location: Location) -> tuple[list[int | str], list[str]]:
    """The location without tags, and the valid names at its end: keys of a section, or tags of a union."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        members = _tagged(kind)
        if part in members:
            kind = members[str(part)]
            continue
        last = position == len(location) - 1
        section = _section(kind)
        path.append(part)
        if section is not None:
            fields = {info.alias or name: info for name, info in section.model_fields.items()}
            if last and part not in fields:
                return path, list(fields)
            kind = _annotation(fields[str(part)]) if part in fields else None
        else:
            kind = _item(kind)
    return path, list(_tagged(kind))


def tagged_at(kind: Any, path: Location) -> tuple[str, dict[str, Any]] | None:
    """The discriminator and the members by tag of the union at a path; None where there is no such union.

    Example: (Params, ["model", "base"]) -> ("type", {"fresh": FreshModel, "pretrained": PretrainedModel}).
    """
    there = _kind_at(kind, path)
    tag, members = _discriminator(there), _tagged(there)
    return (tag, members) if tag and members else None


def _section_at(kind: Any, location: Location) -> type[Section] | None:
    there = _kind_at(kind, location)
    return None if _tagged(there) else _section(there)


def _kind_at(kind: Any, location: Location) -> Any:
    """The type at a location, which may contain the tags of unions; a path below a union without one ends in None."""
    for part in location:
        members, section = _tagged(kind), _section(kind)
        if part in members:
            kind = members[str(part)]
        elif section is not None:
            fields = {info.alias or name: info for name, info in section.model_fields.items()}
            kind = _annotation(fields[str(part)]) if part in fields else None
        else:
            kind = _item(kind)
    return kind


def _discriminator(kind: Any) -> str | None:
    """The field that tells the members of a union apart."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        tag = next((item.discriminator for item in metadata if getattr(item, "discriminator", None)), None)
        return tag if isinstance(tag, str) else _discriminator(inner)
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return _discriminator(members[0]) if len(members) == 1 else None
    return None


def _tagged(kind: Any) -> dict[str, Any]:
    """The members of a discriminated union by tag; an inner union's members by its own tag."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        tag = next((item.discriminator for item in metadata if getattr(item, "discriminator", None)), None)
        if tag is None or get_origin(inner) not in (Union, UnionType):
            return _tagged(inner)
        return {value: member for member in get_args(inner) for value in _tags(member, tag)}
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return _tagged(members[0]) if len(members) == 1 else {}
    return {}


def _tags(member: Any, field: str) -> list[str]:
    if get_origin(member) is Annotated:
        return list(dict.fromkeys(tag for inner in get_args(get_args(member)[0]) for tag in _tags(inner, field)))
    kind = member.model_fields[field].annotation
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


def _section(kind: Any) -> type[Section] | None:
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    if get_origin(kind) in (Union, UnionType):
        sections = [member for member in get_args(kind) if _section(member)]
        return _section(sections[0]) if len(sections) == 1 else None
    return None


def _annotation(info: FieldInfo) -> Any:
    """The type of a field with its discriminator, which pydantic stores separately."""
    tag = info.discriminator
    return info.annotation if tag is None else Annotated[info.annotation, Field(discriminator=tag)]


def _item(kind: Any) -> Any:
    """The type of what a list or mapping holds."""
    if get_origin(kind) is Annotated:
        return _item(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return next((item for member in get_args(kind) if (item := _item(member)) is not None), None)
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[get_origin(kind) is dict]
    return None


def unknown_hint(key: str, names: Iterable[str]) -> str:
    """What to write instead of an unknown parameter: its successor, else the nearest name."""
    if key in UNSUPPORTED:
        return f": {UNSUPPORTED[key]}"
    if key in REPLACED:
        return f": write {REPLACED[key]}"
    names, meant = list(names), MEANINGS.get(key, "")
    return f" (did you mean {meant}?)" if meant in names or "." in meant else did_you_mean(key, names)


def parameters(kind: Any, above: str = "") -> Iterator[str]:
    """The dotted paths of all parameters of a section or of all sections, without those in lists and unions.

    Example: parameters(Params) -> run.seed, run.device, …, rl.critic.lr, …
    """
    section = _section(kind)
    for name, info in (section.model_fields if section else {}).items():
        path = f"{above}{info.alias or name}"
        yield path
        yield from parameters(_annotation(info), f"{path}.")


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
