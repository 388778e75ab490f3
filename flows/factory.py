"""Makes flows, each with a form that opens with what people change most; below, folded, the sections of params/ that
its stages read.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Optional

from prefect import Flow, flow
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
)

from mathrl.compose import load_params
from mathrl.compose.experiment import preset_names
from mathrl.compose.load import NO_PRESET, read_layers
from mathrl.compose.names import help_lines
from mathrl.core.paths import GROUPS, main_checkout
from mathrl.params.form import main_fields, main_overrides, section_form
from mathrl.params.schema import sections_read, stages_until
from mathrl.params.section import AS_IT_IS, fillable
from mathrl.tasks.runs import run_stages

PARAMS = main_checkout() / "params"  # the project's in whose folder the flows are deployed or run


def _known_presets(value: str) -> str:
    unknown = set(value.split("+")) - {NO_PRESET, *preset_names(PARAMS)}
    if unknown:
        raise ValueError(f"no preset {', '.join(sorted(unknown))}; presets: {', '.join(preset_names(PARAMS))}")
    return value


# The list of presets, from the folder as it stands when the flows are deployed. Without null, a form shows it at once.
# The command line may send several, joined by "+".
Preset = Annotated[
    str,
    BeforeValidator(lambda value: NO_PRESET if value is None else value),
    AfterValidator(_known_presets),
    WithJsonSchema({"type": "string", "enum": [NO_PRESET, *preset_names(PARAMS)]}),
]
FIELD_NAMES = {"register": "registry"}  # sections whose names are an attribute of pydantic's models
Option = tuple[object, object]  # a type and a default


@dataclass(frozen=True)
class HelpText:
    """The help text of a form's field; Prefect drops one in `Field(description=…)`. One that is `folded` begins so."""

    text: str
    folded: bool = False

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = {"anyOf": [AS_IT_IS, handler(core)]} if self.folded else handler(core)
        return {**schema, "description": self.text}


def option(kind: object, help_text: str, default: object = inspect.Parameter.empty, *, folded: bool = False) -> Option:
    """A field of a form; without a default it must be filled in."""
    return Annotated[kind, HelpText(help_text, folded)], default


PRESET = option(
    Preset,
    "Preset, a named composition, over params/ and the groups above. What you change below goes over it.",
    NO_PRESET,
)
GROUP_HELP = {
    "data": "What is learned from and tested on: a file or folder of rows, names joined by + (gsm8k+math), or one of",
    "model": "The model that training starts from: a Hugging Face folder, a hub id, or one of",
    "method": "How it is trained: one of",
    "hardware": "What it runs on: GPUs and their memory, such as 1x24GB or 8x80GB, or",
}
OVERRIDES = option(list[str], "Further parameters as section.key=value, e.g. rl.optimizer.beta2=0.99.", [])
JOBS = option(int, "Maximum number of steps that run at the same time, each in a slot of its own.", 1)
ALLOW_DIRTY = option(bool, "Run from the last commit even if code or parameters have uncommitted changes.", False)


def stage_flow(name: str, description: str) -> Flow[..., str]:
    """The flow that brings the stage `name`, or `pipeline`, up to date with all that it depends on.

    Without any setting it runs in the checkout, as `dvc repro` does; with settings in a worktree under runs/.
    """
    return form_flow(name, description, sections_read(stages_until(name)), partial(run_stages, name))


def form_flow(
    name: str,
    description: str,
    sections: Iterable[str],
    run: Callable[..., str],
    groups: bool = True,
    **options: Option,
) -> Flow[..., str]:
    """The flow `name`, whose form has data, model, method and hardware (with `groups`), a preset, the main fields,
    folded all `sections`, overrides, `options`, allow_dirty.

    It calls run(preset=…, sections={"rl": RlForm | None, …}, overrides=[…], allow_dirty=…, **options). A group or
    main field shows what params/ has; those that a person changed are the first of the overrides.
    """
    fields = {section: FIELD_NAMES.get(section, section) for section in sections}
    composed = read_layers(PARAMS).groups if groups else {}
    kinds = GROUPS if groups else ()
    required = {field: kind for field, kind in options.items() if kind[1] is inspect.Parameter.empty}
    main = main_fields(name, load_params(PARAMS))
    form = {
        **required,
        **{kind: _group_field(kind, composed.get(kind, "")) for kind in kinds},
        "preset": PRESET,
        **{field.name: option(field.kind, field.help_text, field.present) for field in main},
        "params": option(_sections(fields), "Every other parameter, by section of params/.", {}, folded=True),
        "overrides": OVERRIDES,
        **{field: kind for field, kind in options.items() if field not in required},
        "allow_dirty": ALLOW_DIRTY,
    }

    def start(preset: str, params: Any, overrides: list[str], **values: Any) -> str:
        chosen = {kind: (values.pop(kind) or "").strip() for kind in kinds}
        changed = [f"{kind}={name}" for kind, name in chosen.items() if name and name != composed.get(kind, "")]
        changed += main_overrides(main, {field.name: values.pop(field.name) for field in main})
        return run(
            preset=None if preset == NO_PRESET else preset,
            sections={section: getattr(params, field, None) for section, field in fields.items()},
            overrides=[*changed, *overrides],
            **values,
        )

    start.__name__, start.__doc__ = name, description
    plain = [inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=form[field][1]) for field in form]
    start.__signature__ = inspect.Signature(plain, return_annotation=str)  # type: ignore[attr-defined]
    made = flow(name=name, description=description)(start)
    # Only now its types: Prefect would make the form here too, which takes a second, and a run has no use for it.
    typed = [parameter.replace(annotation=form[parameter.name][0]) for parameter in plain]
    signature = inspect.Signature(typed, return_annotation=str)
    start.__signature__ = made.__signature__ = signature  # type: ignore[attr-defined]
    return made


def _group_field(kind: str, present: str) -> Option:
    names = "; ".join(f"**{name}**: {text}" for name, text in help_lines(kind, PARAMS).items())
    return option(str, f"{GROUP_HELP[kind]} {names}. Empty: as params/ has it.", present)


def _sections(fields: Mapping[str, str]) -> type[BaseModel]:
    """A form with a field per section, each of which begins folded; `fields` are their names."""
    forms: dict[str, Any] = {}
    for section, field in fields.items():
        form = section_form(section)
        help_text = inspect.getdoc(form).partition("\n")[0]  # type: ignore[union-attr]
        forms[field] = (Optional[form], Field(None, title=field, description=help_text))  # noqa: UP045
    config = ConfigDict(extra="forbid", title="change", json_schema_extra=fillable)
    return create_model("SectionsForm", __config__=config, **forms)
