"""Flows and their forms: no section lacks, only what a person sets is sent, and each flow is deployed."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, SchemaError
from prefect import Flow
from prefect._internal.schemas import validators
from prefect.exceptions import ParameterTypeError, SignatureMismatchError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validation
from pydantic import BaseModel
from ruamel.yaml import YAML

from mathrl.compose import load_params
from mathrl.core.paths import GROUPS
from mathrl.flows.factory import FIELD_NAMES, form_flow, stage_flow
from mathrl.params.form import form_overrides
from mathrl.params.recipe_steps import STEP_STAGES
from mathrl.params.schema import READS, STAGES
from mathrl.params.section import AS_IT_IS
from mathrl.tasks.prefect_server import check_schemas_once

ROOT = Path(__file__).parents[2]
FILES = sorted(file.stem for file in (ROOT / "flows").glob("*.py") if file.stem not in ("__init__", "factory"))
# The stages that a flow starts.
RUNS = {
    **{stage: STAGES[: number + 1] for number, stage in enumerate(STAGES)},
    "pipeline": STAGES,
    "pages": ("pages",),
    "recipe": STEP_STAGES,
    "controls": STEP_STAGES,
}


def schema_of(name: str) -> dict[str, Any]:
    """The form, as it is deployed."""
    return parameter_schema(flow_of(name)).model_dump()


def flow_of(name: str) -> Flow[..., Any]:
    if name not in FILES:
        return stage_flow(name, "A stage without a file in flows/.")
    loaded: Flow[..., Any] = getattr(importlib.import_module(f"mathrl.flows.{name}"), name)
    return loaded


@pytest.mark.parametrize("name", sorted({*FILES, *STAGES}))
def test_a_form_has_every_section_that_the_flows_stages_read_with_help_texts_and_defaults(name: str) -> None:
    schema, made = schema_of(name), flow_of(name)
    fields = schema["properties"]
    assert fields["params"]["default"] == {}
    sections = schema["definitions"]["SectionsForm"]["properties"]
    for section in {section for stage in RUNS.get(name, ()) for section in READS[stage]}:
        field = sections[FIELD_NAMES.get(section, section)]
        folded, form = field["anyOf"]
        assert folded == AS_IT_IS, "it begins folded"
        kind = schema["definitions"][form["$ref"].rpartition("/")[2]]
        assert kind["additionalProperties"] is False, "an unknown key is refused"
        assert not kind.get("required") and "default" not in field
        assert field["description"].endswith(".")
    for kind in (schema, *schema["definitions"].values()):
        for field in kind.get("properties", {}).values():  # Prefect would show `Property is type "None"`
            assert {"type": "null"} not in field.get("anyOf", []) and field.get("default", 0) is not None
    defaults = [fields[field]["default"] for field in ("preset", "overrides", "allow_dirty")]
    assert defaults == ["none", [], False]
    assert schema.get("required", []) == (["recipe"] if name == "recipe" else [])
    assert all(field["description"] for field in fields.values()) and made.description and made.name == name


def test_the_form_of_rl_opens_with_what_people_change_and_its_present_values() -> None:
    fields = schema_of("rl")["properties"]
    first = [*GROUPS, "preset", "lr", "steps", "group_size", "kl_coef", "clip_low", "clip_high", "seed", "params"]
    assert sorted(fields, key=lambda name: fields[name]["position"])[: len(first)] == first
    present = load_params(ROOT / "params")
    assert (fields["lr"]["default"], fields["seed"]["default"]) == (present.rl.optimizer.lr, present.run.seed)
    assert [fields[kind]["default"] for kind in GROUPS] == ["chain", "toy", "grpo", "laptop"], "params/experiment.yaml"
    assert "gsm8k" in fields["preset"]["enum"] and "**gsm8k**" in fields["data"]["description"]
    assert fields["lr"]["maximum"] == 1 and fields["steps"]["type"] == "integer"


def sent_by(form: Mapping[str, Any], name: str = "rl") -> dict[str, Any]:
    """What the run of a flow is given when its form is sent."""
    sent: dict[str, Any] = {}

    def run(sections: Mapping[str, BaseModel | None], overrides: list[str], **options: Any) -> str:
        sent.update(overrides=[*form_overrides(sections), *overrides], options=options)
        return "runs/x"

    made = form_flow(name, "A probe.", ["rl", "register"], run)
    assert made.fn(**made.validate_parameters(dict(form))) == "runs/x"
    return sent


def test_only_what_a_person_sets_is_sent() -> None:
    optimizer = {"type": "adamw", "lr": 2e-4, "beta2": 0.9}
    sent = sent_by({"params": {"rl": {"steps": 7, "optimizer": optimizer}, "registry": {"name": "mine"}}})
    chosen = ['rl.optimizer.type="adamw"', "rl.optimizer.lr=0.0002", "rl.optimizer.beta2=0.9"]
    assert sent["overrides"] == ["rl.steps=7", *chosen, 'register.name="mine"']
    assert sent["options"] == {"preset": None, "allow_dirty": False}


def test_a_form_sends_back_what_it_showed_and_only_changes_count() -> None:
    fields = schema_of("rl")["properties"]
    shown = {name: field["default"] for name, field in fields.items()}
    assert sent_by(shown) == {"overrides": [], "options": {"preset": None, "allow_dirty": False}}
    changed = sent_by(shown | {"preset": "gsm8k", "model": "Qwen/Qwen2.5-0.5B", "lr": 1e-5, "overrides": ["a.b=1"]})
    model = "model=Qwen/Qwen2.5-0.5B"
    assert changed["overrides"] == [model, "rl.optimizer.lr=1e-05", "a.b=1"] and changed["options"]["preset"] == "gsm8k"
    values = load_params(ROOT / "params", overrides=changed["overrides"][:2])
    assert (values.rl.optimizer.lr, values.model.base.type) == (1e-5, "pretrained"), "the loader reads them"


def test_a_flow_refuses_wrong_parameters_before_any_work() -> None:
    optimizer = {"type": "adamw", "lr": 2}
    for wrong in ({"params": {"rl": {"optimizer": optimizer}}}, {"lr": 2}, {"preset": "none such"}, {"rl": {}}):
        with pytest.raises((ParameterTypeError, SignatureMismatchError)):
            flow_of("rl").validate_parameters(wrong)


def test_every_flow_is_deployed_and_every_deployment_has_its_flow() -> None:
    deployments = YAML(typ="safe").load(ROOT / "prefect.yaml")["deployments"]
    assert {each["entrypoint"] for each in deployments} == {f"mathrl.flows.{name}.{name}" for name in FILES}
    assert all(each["enforce_parameter_schema"] and each["work_pool"]["name"] == "mathrl" for each in deployments)


def test_a_flow_imports_nothing_that_computes() -> None:
    heavy = {"torch", "transformers", "mlflow", "dvc"}
    code = f"import sys, flows.pipeline, flows.recipe, flows.controls, flows.sweep; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture
def count_checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What a validator's own check is asked after `check_schemas_once`; all validators are as before at the end."""

    def count(validator: Any) -> list[Any]:
        checked: list[Any] = []
        check = validator.check_schema

        def noted(schema: Any, **options: Any) -> None:
            checked.append(schema)
            check(schema, **options)

        for each in (Draft202012Validator, validation._VALIDATOR):
            monkeypatch.setattr(each, "check_schema", staticmethod(noted) if each is validator else each.check_schema)
        check_schemas_once()
        return checked

    return count


def test_a_schema_that_is_right_is_checked_once_and_one_that_is_not_each_time(
    count_checks: Callable[..., list[Any]],
) -> None:
    checked = count_checks(validation._VALIDATOR)
    right, wrong = {"properties": {"lr": {"maximum": 1}}}, {"properties": {"lr": {"maximum": "1"}}}
    for _ in range(2):
        validation.validate({"lr": 0.5}, right, raise_on_error=True)
        with pytest.raises(validation.ValidationError, match="greater than the maximum of 1"):
            validation.validate({"lr": 2}, right, raise_on_error=True)
        with pytest.raises(SchemaError, match="'1' is not of type 'number'"):
            validation.validate({"lr": 0.5}, wrong, raise_on_error=True)
    assert checked == [right, wrong, wrong]
    checked.clear()
    for name in ("lr", "kl"):
        both = {"properties": {name: {"$ref": "#/definitions/rate"}}, "definitions": {"rate": right, "also": right}}
        validation.validate({name: {"lr": 0.5}}, both, raise_on_error=True)
        with pytest.raises(validation.ValidationError, match="greater than the maximum of 1"):
            validation.validate({name: {"lr": 2}}, both, raise_on_error=True)
        with pytest.raises(SchemaError, match="'1' is not of type 'number'") as caught:
            validation.validate({}, both | {"definitions": {"rate": wrong}}, raise_on_error=True)
        assert list(caught.value.absolute_path) == ["definitions", "rate", "properties", "lr", "maximum"]
    assert checked.count(right) == 0 and checked.count(wrong) == 2, "right was checked before"


def test_a_definition_is_checked_once_for_all_deployments(count_checks: Callable[..., list[Any]]) -> None:
    """Prefect checks a deployment's schema by another validator, in two places."""
    checked = count_checks(Draft202012Validator)
    rate = {"properties": {"lr": {"maximum": 1}}}
    for name in ("sft", "rl"):
        schema = {"properties": {name: {"$ref": "#/definitions/rate"}}, "definitions": {"rate": rate}}
        deployment = {"enforce_parameter_schema": True, "parameter_openapi_schema": schema}
        for _ in range(2):
            validators.validate_parameter_openapi_schema(schema, deployment)
            validators.validate_parameters_conform_to_schema({name: {"lr": 0.5}}, deployment)
        with pytest.raises(ValueError, match="greater than the maximum of 1"):
            validators.validate_parameters_conform_to_schema({name: {"lr": 2}}, deployment)
    assert checked.count(rate) == 1 and len(checked) == 3, "and the rest of each of the two"
