"""Makes flows, each with a form that has the sections of params/ that its stages read."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from prefect import Flow, flow
from pydantic import GetJsonSchemaHandler

from mathrl.params.form import section_form
from mathrl.params.load import preset_names
from mathrl.params.schema import sections_read, stages_until
from tasks.stages import run_stages

PARAMS = Path(__file__).parents[1] / "params"
# The dropdown of presets, from the folder as it stands when the flows are deployed.
Preset = Optional[Literal[tuple(preset_names(PARAMS))]]  # type: ignore[valid-type]  # noqa: UP045
# Sections whose names are taken: by an attribute of pydantic's models, by the pipeline's option.
FIELD_NAMES = {"register": "registry", "controls": "control_runs"}
Option = tuple[object, object]  # a type and a default


@dataclass(frozen=True)
class HelpText:
    """The help text of a form's field; Prefect drops one in `Field(description=…)`."""

    text: str

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "description": self.text}


def option(kind: object, help_text: str, default: object = inspect.Parameter.empty) -> Option:
    """A field of a form beside the sections; without a default it must be filled in."""
    return Annotated[kind, HelpText(help_text)], default


PRESET = option(Preset, "Preset (a file of params/presets), over params/; the fields of this form override it.", None)
OVERRIDES = option(list[str], "Further parameters as section.key=value, e.g. rl.optimizer.beta2=0.99.", [])
ALLOW_DIRTY = option(bool, "Run from the last commit even if code or parameters have uncommitted changes.", False)


def stage_flow(name: str, description: str, **options: Option) -> Flow[..., str]:
    """The flow that brings the stage `name`, or `pipeline`, up to date with all that it depends on.

    Without any setting it runs in the checkout, as `dvc repro` does; with settings in a worktree under runs/.
    `options` are named after the stages that they add.
    """
    sections = sections_read([*stages_until(name), *options])
    return form_flow(name, description, sections, partial(run_stages, name), **options)


def form_flow(
    name: str, description: str, sections: Iterable[str], run: Callable[..., str], **options: Option
) -> Flow[..., str]:
    """The flow `name`, whose form has a preset, `sections`, overrides, `options` and allow_dirty.

    It calls run(preset=…, sections={"rl": RlForm | None, …}, overrides=[…], allow_dirty=…, **options).
    """
    fields = {section: FIELD_NAMES.get(section, section) for section in sections}
    required = {field: kind for field, kind in options.items() if kind[1] is inspect.Parameter.empty}
    form = {
        **required,
        "preset": PRESET,
        **{field: _section(section) for section, field in fields.items()},
        "overrides": OVERRIDES,
        **{field: kind for field, kind in options.items() if field not in required},
        "allow_dirty": ALLOW_DIRTY,
    }

    def start(**values: Any) -> str:
        return run(sections={section: values.pop(field) for section, field in fields.items()}, **values)

    start.__name__, start.__doc__ = name, description
    start.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # Prefect makes the form from it
        [
            inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for field, (kind, default) in form.items()
        ],
        return_annotation=str,
    )
    return flow(name=name, description=description)(start)


def _section(name: str) -> Option:
    form = section_form(name)
    return option(Optional[form], inspect.getdoc(form).partition("\n")[0], None)  # type: ignore[union-attr]  # noqa: UP045
