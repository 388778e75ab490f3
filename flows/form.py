"""The fields that every flow's form has."""

from pathlib import Path
from typing import Annotated, Literal, Optional

from pydantic import Field

from mathrl.params.form import section_form
from mathrl.params.load import preset_names

PARAMS = Path(__file__).parents[1] / "params"

# The dropdown of presets, from the folder as it stands when the flows are deployed.
Preset = Optional[Literal[tuple(preset_names(PARAMS))]]  # type: ignore[valid-type]  # noqa: UP045


def section(name: str, text: str) -> object:
    """The optional, empty section `name` of a form, with its heading."""
    return Annotated[Optional[section_form(name)], Field(title=name, description=text)]  # noqa: UP045


RunForm = section("run", "Seed and machine.")
ModelForm = section("model", "The base model.")
PromptForm = section("prompt", "How a problem becomes a prompt.")
RewardForm = section("reward", "How a response is judged.")
RolloutForm = section("rollout", "The sampling engine.")
CurateForm = section("curate", "Sources, deduplication, decontamination, splits.")
SftForm = section("sft", "Supervised fine-tuning.")
DifficultyForm = section("difficulty", "Pass rates of the SFT model.")
MixForm = section("mix", "The RL training set.")
RlForm = section("rl", "Reinforcement learning.")
EvaluateForm = section("evaluate", "The held-out comparison.")
RegisterForm = section("register", "The registry entry.")
