"""The demo has the values that it had before presets were composed.

demo_values.json was written at 0eefa55: all values of params/, by the names of 0.1.
"""

import json
from pathlib import Path

from mathrl.compose import load_params
from mathrl.params.load import put_section
from mathrl.params.old_names import OldNames
from mathrl.params.schema import SECTIONS, Params

ROOT = Path(__file__).parents[2]
HELD = json.loads((ROOT / "tests" / "params" / "demo_values.json").read_text("utf-8"))


def test_the_demo_has_every_value_that_it_had() -> None:
    values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    old = OldNames()
    for name, section in HELD["demo"].items():
        put_section(values, name, section, old)
    old.settle(values)
    held = Params.model_validate(values).model_dump(mode="json", by_alias=True)
    assert load_params(ROOT / "params").model_dump(mode="json", by_alias=True) == held
