"""The fields that every flow's form has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from pydantic import GetJsonSchemaHandler

from mathrl.params.form import section_form
from mathrl.params.load import preset_names

PARAMS = Path(__file__).parents[1] / "params"

# The dropdown of presets, from the folder as it stands when the flows are deployed.
Preset = Optional[Literal[tuple(preset_names(PARAMS))]]  # type: ignore[valid-type]  # noqa: UP045


@dataclass(frozen=True)
class Described:
    """A help text in the form; one in `Field(description=…)` is dropped by Prefect."""

    text: str

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "description": self.text}


def section(name: str, text: str) -> object:
    """The optional, empty section `name` of a form, with its help text."""
    return Annotated[Optional[section_form(name)], Described(text)]  # noqa: UP045


RunForm = section("run", "Seed and machine.")
ModelForm = section("model", "The base model.")
PromptForm = section("prompt", "How a problem becomes a prompt.")
RewardForm = section("reward", "How a response is judged.")
RolloutForm = section("rollout", "The sampling engine.")
TrainingForm = section("training", "torch or DeepSpeed, and what happens on faults.")
PagesForm = section("pages", "Files of pages, seeds, rounds, promotion.")
CurateForm = section("curate", "Sources, deduplication, decontamination, splits.")
SftForm = section("sft", "Supervised fine-tuning.")
DifficultyForm = section("difficulty", "Pass rates of the SFT model.")
HealthForm = section("health", "When training counts as ill, and whether that ends it.")
MixForm = section("mix", "The RL training set.")
RlForm = section("rl", "Reinforcement learning.")
EvaluateForm = section("evaluate", "The held-out comparison.")
RegisterForm = section("register", "The registry entry.")
SweepForm = section("sweep", "What is varied, how it is judged, how long it may take.")
