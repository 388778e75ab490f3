"""Flows and their forms: no section lacks, only what a person sets is sent, and each flow is deployed."""

import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.exceptions import ParameterTypeError
from pydantic import BaseModel
from ruamel.yaml import YAML

from flows.factory import FIELD_NAMES, form_flow, stage_flow
from mathrl.params.form import form_overrides
from mathrl.params.recipe import STEP_STAGES
from mathrl.params.schema import READS, STAGES

ROOT = Path(__file__).parents[2]
FILES = sorted(file.stem for file in (ROOT / "flows").glob("*.py") if file.stem not in ("__init__", "factory"))
# The stages that a flow starts.
RUNS = {
    **{stage: STAGES[: number + 1] for number, stage in enumerate(STAGES)},
    "pipeline": (*STAGES, "controls"),
    "pages": ("pages",),
    "recipe": STEP_STAGES,
}


def flow_of(name: str) -> Flow[..., Any]:
    if name not in FILES:
        return stage_flow(name, "A stage without a file in flows/.")
    loaded: Flow[..., Any] = getattr(importlib.import_module(f"flows.{name}"), name)
    return loaded


@pytest.mark.parametrize("name", sorted({*FILES, *STAGES} - {"sweep"}))
def test_a_form_has_every_section_that_the_flows_stages_read(name: str) -> None:
    schema = flow_of(name).parameters.model_dump()
    for stage in RUNS[name]:
        for section in READS[stage]:
            field = schema["properties"][FIELD_NAMES.get(section, section)]
            (form,) = [kind["$ref"] for kind in field["anyOf"] if "$ref" in kind]
            kind = form.rpartition("/")[2]
            assert schema["definitions"][kind]["additionalProperties"] is False, "an unknown key is refused"
            assert not schema["definitions"][kind].get("required") and field["default"] is None
            assert field["description"].endswith(".")


@pytest.mark.parametrize("name", FILES)
def test_the_fields_beside_the_sections_have_help_texts_and_their_defaults(name: str) -> None:
    schema = flow_of(name).parameters.model_dump()
    fields = schema["properties"]
    assert (fields["preset"]["default"], fields["overrides"]["default"], fields["allow_dirty"]["default"]) == (
        None,
        [],
        False,
    )
    assert schema.get("required", []) == (["recipe"] if name == "recipe" else [])
    assert all(field["description"] for field in fields.values())
    assert flow_of(name).description and flow_of(name).name == name


def test_only_what_a_person_sets_is_sent() -> None:
    sent: dict[str, Any] = {}

    def run(sections: Mapping[str, BaseModel | None], **options: Any) -> str:
        sent.update(overrides=form_overrides(sections), options=options)
        return "runs/x"

    made = form_flow("probe", "A probe.", ["rl", "register"], run)
    form = made.validate_parameters({"rl": {"lr": 2e-4, "optimizer": {"beta2": 0.9}}, "registry": {"name": "mine"}})
    assert made.fn(**form) == "runs/x"
    assert sent["overrides"] == ["rl.lr=0.0002", "rl.optimizer.beta2=0.9", 'register.name="mine"']
    assert sent["options"] == {"preset": None, "overrides": [], "allow_dirty": False}


@pytest.mark.parametrize("wrong", [{"rl": {"learning": 1}}, {"rl": {"lr": 2}}, {"preset": "none such"}])
def test_a_flow_refuses_wrong_parameters_before_any_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterTypeError, match="received invalid parameters"):
        flow_of("rl").validate_parameters(wrong)


def test_every_flow_is_deployed_and_every_deployment_has_its_flow() -> None:
    deployments = YAML(typ="safe").load(ROOT / "prefect.yaml")["deployments"]
    assert {each["entrypoint"] for each in deployments} == {f"flows/{name}.py:{name}" for name in FILES}
    assert all(each["enforce_parameter_schema"] and each["work_pool"]["name"] == "mathrl" for each in deployments)


def test_a_flow_imports_nothing_that_computes() -> None:
    heavy = {"torch", "transformers", "mlflow", "dvc"}
    code = f"import sys, flows.pipeline, flows.recipe, flows.sweep; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
