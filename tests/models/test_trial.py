"""What the trial of an architecture finds, and that the sampler then samples from the model that the trainer trains."""

import copy
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mathrl.cli.doctor import model_findings
from mathrl.core.errors import UserError
from mathrl.models import trial
from mathrl.models.base import character_tokenizer
from mathrl.models.device import state_kept
from mathrl.models.dropout import disable_dropout
from mathrl.models.load import load_model
from mathrl.models.logprobs import architecture_trial, prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import compute_as
from mathrl.models.small_copy import small_config, small_copy
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Model
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine

TOKENIZER = character_tokenizer(FreshModel(alphabet="arithmetic"))
PROMPTS = [[4, 5, 6], [7], [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]
# One of each kind: how it trains, how it samples.
FAMILIES = {
    "llama": ("packed", "packed"),
    "gpt2": ("packed", "packed"),  # a dropout of 0.1
    "qwen3_5_text": ("padded", "cached"),  # linear beside full attention
    "minimax": ("padded", "cached"),  # a cache class of its own
    "diffllama": ("packed", "cached"),
    "rwkv": ("padded", "recomputed"),  # states that padding on the left would change
}


def tiny(family: str, **options: Any) -> Any:
    """A random model that is neither tried nor packed yet."""
    torch.set_num_threads(1)
    config = small_config(AutoConfig.for_model(family, **options))
    made = small_copy(AutoModelForCausalLM.from_config(config))
    compute_as(made, None)
    made.generation_config.eos_token_id = list(range(3, 96, 8))  # so that some responses end early
    return made


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sampled(model: Any, tokens: int = 12) -> tuple[list[Group], torch.Tensor]:
    """Three responses per prompt and the log-probs with which they were sampled."""
    groups = TorchEngine(model, TOKENIZER, Rollout(max_sequences=16)).generate(PROMPTS, Sampling(3, 0.8, tokens), 0)
    packed = [Group(p, [response.tokens for response in group]) for p, group in zip(PROMPTS, groups, strict=True)]
    return packed, torch.tensor([value for group in groups for response in group for value in response.logprobs])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:.*trains padded:UserWarning")
@pytest.mark.filterwarnings("ignore:.*without a cache:UserWarning")
def test_the_sampler_and_the_trainer_compute_one_model(family: str) -> None:
    model = tiny(family)
    disable_dropout(model)
    groups, logprobs = sampled(model)
    known = architecture_trial(model)
    assert ("padded" if known.not_packed else "packed", known.sampling) == FAMILIES[family]
    assert len({len(response) for group in groups for response in group.responses}) > 1, "none left the batch early"
    with torch.no_grad():
        expected, _ = response_logprobs(model.train(), groups, 0.8)
        alone = torch.cat(
            [
                _plain(model.eval(), group.prompt, list(response), 0.8)
                for group in groups
                for response in group.responses
            ]
        )
    assert torch.allclose(logprobs, expected, atol=1e-4) and torch.allclose(logprobs, alone, atol=1e-4)


def _plain(model: Any, prompt: Any, response: list[int], temperature: float) -> torch.Tensor:
    """transformers' own forward pass of one sequence."""
    logits = model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0] / temperature
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return rows[torch.arange(len(response)), torch.tensor(response)]


def test_a_decoder_that_does_not_fit_is_found_out() -> None:
    """What the issue saw: other greedy tokens than the forward pass's, and no error."""
    model, groups = tiny("rwkv"), trial.trial_groups()
    with torch.no_grad():
        expected = trial.alone(model, groups)
        assert trial.decodes(model, "recomputed", groups, expected)
        assert not trial.decodes(model, "cached", groups, expected)
        assert not trial.decodes(model, "recomputed", groups, expected + 0.01)


def test_a_trial_is_exact_where_the_trainer_lets_a_gpu_round_products() -> None:
    seen: set[bool] = set()

    def alone(model: Any, groups: Any) -> torch.Tensor:
        seen.add(torch.backends.cuda.matmul.allow_tf32)
        return trial.alone(model, groups)

    with state_kept():
        torch.backends.cuda.matmul.allow_tf32 = True
        trial.run_trial(tiny("llama"), alone, alone)
        assert seen == {False} and torch.backends.cuda.matmul.allow_tf32


def test_dropout_moves_log_probs_unless_it_is_off() -> None:
    model = tiny("gpt2", attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1)
    groups, logprobs = sampled(model)
    model.train()
    with torch.no_grad():
        assert (response_logprobs(model, groups, 0.8)[0] - logprobs).abs().max() > 0.1
        disable_dropout(model)
        assert torch.allclose(response_logprobs(model, groups, 0.8)[0], logprobs, atol=1e-4)
    assert model.config.attn_pdrop == 0.1, "the exported configuration keeps it"


def test_a_result_is_kept_per_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    known = architecture_trial(model)
    (file,) = (tmp_path / "cache/mathrl/architectures").iterdir()
    twin = copy.deepcopy(model)
    with monkeypatch.context() as patched:
        patched.setattr(trial, "run_trial", lambda *_: pytest.fail("tried again"))
        assert architecture_trial(twin) == known
        other = tiny("llama", attention_bias=True)
        with pytest.raises(pytest.fail.Exception):
            architecture_trial(other)
    file.write_text("{")  # damaged: tried again
    assert architecture_trial(twin) == known

    class FromAFolder(type(model)):  # type: ignore[misc]
        """Code that comes with a model may change under its name."""

    twin.__class__ = FromAFolder
    assert architecture_trial(twin).architecture == "FromAFolder"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "family,reason",
    [
        ("bert", "a token's log-prob depends on later tokens"),
        ("t5", "t5 is an encoder-decoder"),
        ("bart", "bart is an enc"),
    ],
)
def test_what_is_no_decoder_is_refused_in_one_sentence(family: str, reason: str, tmp_path: Path) -> None:
    config = small_config(AutoConfig.for_model(family))
    if family == "bert":
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        assert model_findings(str(tmp_path))[0][0] == "missing"
    else:
        config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=reason) as error:
        load_model(tmp_path, Model(precision="float32"), "cpu")
    assert "\n" not in str(error.value) and "decoder-only" in str(error.value)


def test_padding_and_recomputing_say_what_they_cost() -> None:
    with pytest.warns(UserWarning, match=r"RwkvForCausalLM trains padded .* without a cache.*2 to 10 times.*vllm"):
        assert not prepare_language_model(tiny("rwkv")).packed


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn"},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "dynamic"},
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_positions_beyond_the_original_length(rope: dict[str, Any]) -> None:
    """Frequencies that depend on the longest sequence of a batch give a response no log-prob of its own: refused."""
    common = {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    model, dynamic = tiny("llama", max_position_embeddings=16, rope_parameters=common | rope), "dynamic" in str(rope)
    assert ("padded batch" in architecture_trial(model).refused) == dynamic
    limit = trial.one_batch_limit(model.config)
    assert limit is not None and "within 16" in limit if dynamic else limit is None


def test_the_page_has_the_rows_that_the_command_makes() -> None:
    tool = _tool("model_table")
    page = tool.PAGE.read_text(encoding="utf-8")
    for line in tool.rows(["qwen2", "xglm", "roberta"]):
        name, result = line.removeprefix("| ").removesuffix(" |").split(" | ", 1)
        row = next((row for row in page.splitlines() if row.startswith(f"| {result} | ")), "")
        assert name in row.split(" | ")[-1], "run: python tools/model_table.py"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_that_cannot_be_narrow_is_tried_at_full_width() -> None:
    config = small_config(AutoConfig.for_model("llama"))
    config.intermediate_size = 100
    model = AutoModelForCausalLM.from_config(config)

    class OneWidth(type(model)):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            if config.intermediate_size != 100:
                raise ValueError("100 alone")
            super().__init__(config)

    model.__class__ = OneWidth
    assert architecture_trial(model).sampling == "packed"
    model.config.intermediate_size = 99
    compute_as(model, None)
    assert "100 alone" in architecture_trial(model).refused


def test_near_is_false_for_a_nan() -> None:
    assert not trial.near(torch.tensor([math.nan]), torch.zeros(1))
