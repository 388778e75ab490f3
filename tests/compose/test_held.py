"""The demo and the presets of published runs have the values that they had before they were composed.

demo_values.json was written at 0eefa55: all values of params/ and of each preset, by the names of 0.1, and the keys
that each preset wrote itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.params.load import put_section
from mathrl.params.old_names import OldNames
from mathrl.params.schema import SECTIONS, Params

ROOT = Path(__file__).parents[2]
HELD = json.loads((ROOT / "tests" / "params" / "demo_values.json").read_text("utf-8"))
PRESETS = tuple(HELD["presets"])
DATA_PRESETS = ("dapo", "gsm8k", "math", "math-mixture")  # compositions of data and method: any model goes with them
# Known better since: the dates of models, values that docs/reference/presets corrects with the document's words,
# and a benchmark that there never was.
SINCE = {
    "model.base.released": set(PRESETS),
    "rl.steps": {"rlinf-1.5b"},
    "run.processes": {"rlinf-1.5b"},
    "evaluate.benchmarks": {"countdown-grpo-zero-24gb", "countdown-grpo-zero-48gb"},
}
PUBLISHED = sorted(HELD["presets"].keys() - set(DATA_PRESETS))


def renamed(sections: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: {} for name in SECTIONS}
    old = OldNames()
    for name, section in sections.items():
        put_section(values, name, section, old)
    old.settle(values)
    return Params.model_validate(values).model_dump(mode="json", by_alias=True)


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if isinstance(values, dict) and values:
        return {key: value for name, part in values.items() for key, value in flat(part, f"{path}.{name}").items()}
    return {path.removeprefix("."): values}


def test_the_demo_has_every_value_that_it_had() -> None:
    assert load_params(ROOT / "params").model_dump(mode="json", by_alias=True) == renamed(HELD["demo"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_has_what_its_preset_wrote(name: str) -> None:
    before, now = (
        flat(values)
        for values in (
            renamed({**HELD["demo"], **HELD["presets"][name]}),
            load_params(Path("no/params"), preset=name).model_dump(mode="json", by_alias=True),
        )
    )
    wrote = flat(renamed({**HELD["demo"], **nested(HELD["presets"][name], HELD["written"][name])}))
    demo = flat(renamed(HELD["demo"]))
    changed = {key for key, value in wrote.items() if demo.get(key, "none") != value}
    assert len(changed) > 15
    differ = {key: (before.get(key), now.get(key)) for key in changed if before.get(key) != now.get(key)}
    idle = ("sweep.", "sft.") if not now["sft.steps"] else ("sweep.",)  # SFT of no steps trains nothing
    known = {key for key, names in SINCE.items() if name in names}
    assert {key: pair for key, pair in differ.items() if not key.startswith(idle) and key not in known} == {}


def nested(sections: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    """The sections that have a key that was written."""
    return {name: section for name, section in sections.items() if any(key.split(".")[0] == name for key in keys)}
