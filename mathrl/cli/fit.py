"""`mathrl plan --fit`: what follows from data, model, method and hardware, shown with its reasons and written down.

What is known of the lengths of a run's data in this checkout, for a dry run and `mathrl plan`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from mathrl.cli.output import print_table
from mathrl.compose.changes import edit_yaml
from mathrl.compose.derived import DataTokens, changes, derive
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import read_layers, write_experiment
from mathrl.compose.names import hardware_of
from mathrl.compose.settings import Derived, value_at, written_keys
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.gpus import Hardware, gpu_count
from mathrl.core.paths import main_checkout
from mathrl.models.shapes import KnownModel, known_model
from mathrl.params.load import FOLDER
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import Params
from mathrl.stages import known_lengths

FOR_FRESH = "the model has random weights: its rates and lengths are its own, and it fits anywhere"


def fit_params(preset: str | None, overrides: Sequence[str]) -> list[str]:
    """Show what follows, and write it into params/ with the choices and overrides of this command.

    Returns overrides for what could not be written there.

    Raises:
        UserError: nothing fits, or the parameters are wrong.
    """
    chosen, settings = split_choices(overrides)
    layers = read_layers(FOLDER, preset, None, chosen)
    params = layers.stated_params(settings)
    base = params.model.base
    if not isinstance(base, PretrainedModel):
        print(f"nothing to derive: {FOR_FRESH}")
        return []
    hardware = hardware_of(layers.groups.get("hardware", "")) or this_machine()
    tokens = data_tokens(params)
    print(f"for {describe_hardware(hardware)}; {_describe_tokens(tokens)}")
    found = derive(params, set(written_keys(layers.written_values(settings))), hardware, _model(base), tokens)
    show(params, found)
    if preset or overrides:
        write_experiment(FOLDER, preset, overrides)
        print(f"written to {FOLDER}/: what this command chose and set")
    new = changes(params, found)
    if not new:
        print("nothing to write: every value is there already")
    return [f"{key}={_text(new[key])}" for key in _write(new, read_layers().stated_params())]


def named_hardware(
    preset: str | None, overrides: Sequence[str], gpus: int | None, memory: float | None, *, fit: bool
) -> list[str]:
    """The options --gpus and --gpu-memory as a choice, such as hardware=1x24GB.

    Without --gpus as many as the composition's hardware has, or else as the run has processes (with `fit` one).

    Raises:
        UserError: with `fit`, GPUs without their memory.
    """
    if memory is None:
        if fit and gpus:
            raise UserError("--fit needs the memory of a GPU too: --gpu-memory 24GB, or write hardware=8x80GB")
        return []
    chosen, settings = split_choices(overrides)
    layers = read_layers(FOLDER, preset, None, chosen)
    hardware = hardware_of(layers.groups.get("hardware", ""))
    count = gpus or (hardware.count if hardware else 1 if fit else layers.stated_params(settings).run.processes)
    return [f"hardware={count}x{memory / 1e9:g}GB"]


def hardware_chosen(preset: str | None, overrides: Sequence[str]) -> Hardware | None:
    """The GPUs of the composition; None if it names none."""
    layers = read_layers(FOLDER, preset, None, split_choices(overrides)[0])
    return hardware_of(layers.groups.get("hardware", ""))


def this_machine() -> Hardware:
    """The GPUs of this machine, or its cores."""
    if count := gpu_count():
        from mathrl.models.device import hardware_of as described  # torch

        return replace(described("cuda"), count=count)
    return Hardware("cpu", memory=psutil.virtual_memory().total, count=os.cpu_count() or 1)


def describe_hardware(hardware: Hardware) -> str:
    kind = f"GPU{'s' * (hardware.count > 1)} of" if hardware.is_gpu else "cores with"
    return f"{hardware.count} {kind} {hardware.memory / 1e9:.0f} GB"


def show(params: Params, found: Sequence[Derived]) -> None:
    """Print a row for each value: what it is, what it was, and why."""
    rows = []
    for each in found:
        before = value_at(params, each.key)
        rows.append(
            {
                "setting": each.key,
                "value": _text(each.value),
                "before": "" if before == each.value else _text(before),
                "why": each.reason + (f" ({each.source})" if each.source else ""),
            }
        )
    print_table("What follows; what is written in params/, a preset or --set stays", rows, ("setting", "why"))


def _describe_tokens(tokens: DataTokens | None) -> str:
    if tokens is None:
        return "the data's tokens are not known: data or tokenizer are not on this machine"
    solutions = "no solutions" if tokens.solutions_p95 is None else f"solutions of up to {tokens.solutions_p95:,.0f}"
    return f"{tokens.rows:,} problems: prompts of up to {tokens.prompts_p95:,.0f} tokens, {solutions} (95 %)"


def _model(base: PretrainedModel) -> KnownModel | None:
    """As `known_model`, with the configuration of the folder or the hub where the name alone is known."""
    known = known_model(base)
    if known is not None and known.source.startswith("config.json"):
        return known
    from mathrl.models.model_shape import config_of, shape_of  # torch

    try:
        config = config_of(base)
    except UserError:
        return known
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return KnownModel(shape_of(config), positions, f"config.json of {base.path}")


def _write(values: Mapping[str, Any], own: Params, folder: Path = FOLDER) -> list[str]:
    """Write the values into the section files, comments and all; the keys whose section the project does not have."""
    left, files = list[str](), dict[Path, dict[str, Any]]()
    for key, value in values.items():
        try:
            value_at(own, key)
        except UserError:  # a critic, say, that a preset of this command alone has
            left.append(key)
            continue
        section, _, rest = key.partition(".")
        files.setdefault(folder / f"{section}.yaml", {})[rest] = value
    for file, changed in files.items():
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        write_text(file, edit_yaml(before, changed, str(file)))
    if files:
        print(f"written: {', '.join(map(str, files))}")
    if left:
        print(f"not written, since params/ has no such section: {', '.join(left)}")
    return left


def _text(value: Any) -> str:
    """As YAML: true, 1e-06, fsdp.

    >>> _text(True), _text(1e-6), _text("fsdp")
    ('true', '1e-06', 'fsdp')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def judge_lengths(params: Params, stages: Sequence[str], typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the stages would say of their lengths and benchmarks: a sentence per refused one and per typed one.

    Nothing where it cannot be known (mathrl/stages/known_lengths.py).
    """
    from mathrl.tasks.lengths import is_judged  # as the next, for these commands alone

    if not is_judged(params):
        return [], []
    judged = known_lengths.judge_lengths(params, stages, typed, _known_splits(params))
    return judged.refused, judged.warned


def data_tokens(params: Params) -> DataTokens | None:
    """Tokens of the prompts and solutions that rl would have; None where they cannot be known."""
    return known_lengths.data_tokens(params, _known_splits(params)) if params.model.base.type == "pretrained" else None


def _known_splits(params: Params) -> Path | None:
    """The curated splits of the checkout, if `curate` with these parameters would have nothing to do."""
    from mathrl.tasks.lengths import curated_splits

    return curated_splits(main_checkout(), params)
