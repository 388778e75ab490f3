"""vLLM serves what mathrl exports, unchanged. For DeepSpeed see test_deepspeed.py."""

import json
from pathlib import Path

import pytest
import torch

from mathrl.models.load import load_model, make_base
from mathrl.params.run import Model
from tests.marks import needs_vllm, run_program

HERE = Path(__file__).parent
MODEL = Model(precision="float32")
pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("engines") / "base"
    make_base(MODEL, target, seed=0)
    return target


@needs_vllm
def test_vllm_serves_an_exported_model_with_the_log_probs_of_a_plain_forward(folder: Path, tmp_path: Path) -> None:
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    run_program(HERE / "vllm_greedy.py", folder, tmp_path / "prompts.json", tmp_path / "out.json")
    model = load_model(folder, MODEL, "cpu").eval()
    for prompt, row in zip(prompts, json.loads((tmp_path / "out.json").read_text()), strict=True):
        ids = torch.tensor([prompt + row["tokens"]])
        with torch.no_grad():
            logprobs_TV = model(input_ids=ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        assert logprobs_TV.argmax(-1).tolist() == row["tokens"]
        taken = logprobs_TV.gather(-1, torch.tensor(row["tokens"])[:, None])[:, 0]
        # float32 against float32 with other kernels: 1.7e-5 was the largest difference over 16,384 tokens.
        torch.testing.assert_close(taken, torch.tensor(row["logprobs"]), atol=1e-4, rtol=0)
