"""The shapes of usual models, by table, config.json or name, against transformers and the hub."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.models.model_shape import shape_of
from mathrl.models.shapes import KNOWN, SIZES, known_model, known_shape
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.run import PretrainedModel

# As the hub counts them in the weights' files; embedding counted once where it is tied.
PARAMETERS = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "deepseek-ai/deepseek-math-7b": 6_910_365_696,
}
KINDS = ("-Instruct", "-instruct", "-Base", "-base", "-rl")


def test_shapes_of_known_models_have_their_published_number_of_parameters() -> None:
    seen = set()
    for name in KNOWN:
        model = next((name.removesuffix(kind) for kind in KINDS if name.endswith(kind)), name)
        assert known_shape(name).parameters == PARAMETERS[model], name
        seen.add(model)
    assert seen == set(PARAMETERS)


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B"],
)
def test_a_shape_is_that_of_the_model_that_transformers_makes(name: str) -> None:
    kind, sizes = KNOWN[name]
    config = AutoConfig.for_model(kind, **dict(zip(SIZES, sizes, strict=True)))
    assert known_shape(name) == shape_of(config)


def test_the_plan_needs_no_torch() -> None:
    script = "import sys, mathrl.planning.memory, mathrl.planning.memory; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_a_model_is_known_by_its_folder_its_id_or_its_name(tmp_path: Path) -> None:
    config = dict(zip(SIZES, KNOWN["Qwen/Qwen3-0.6B"][1], strict=True))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    by_folder, by_id = known_model(base_of(tmp_path)), known_model(base_of("Qwen/Qwen3-0.6B"))
    assert by_folder is not None and by_id is not None
    assert by_folder.shape == by_id.shape and by_folder.positions == by_id.positions == 40960
    by_name = known_model(base_of("somebody/own-13b-math"))
    assert by_name is not None and by_name.positions is None and "the size in the name" in by_name.source
    assert by_name.shape.parameters == pytest.approx(13e9, rel=0.02)
    assert known_model(base_of("somebody/own")) is None


def base_of(path: object) -> PretrainedModel:
    return PretrainedModel(path=str(path))
