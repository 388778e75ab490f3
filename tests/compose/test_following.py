"""What follows from a composition is part of its parameters, beneath all that somebody said; the demo's values stay."""

import json
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.compose.settings import value_at
from mathrl.core.errors import UserError
from mathrl.params.load import put_section
from mathrl.params.old_names import OldNames
from mathrl.params.schema import SECTIONS, Params
from mathrl.planning.final_values import RATES

DEMO = Path(__file__).parents[2] / "params"
CHOICES = ("data=gsm8k", "model=Qwen/Qwen2.5-1.5B-Instruct", "method=grpo", "hardware=1x24GB")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params").mkdir()
    return tmp_path / "params"


def layers(folder: Path, *choices: str) -> Layers:
    return read_layers(folder, None, None, split_choices(choices)[0])


def test_what_nobody_said_follows_and_says_so(folder: Path) -> None:
    found = layers(folder, *CHOICES)
    params, stated = found.params(), found.stated_params()
    assert params.training.backend == "deepspeed" and stated.training.backend == "torch"
    assert params.training.deepspeed.offload_optimizer and params.rl.tokens_per_microbatch == 2048
    said = found.said_by()
    assert said["training.backend"].startswith("derived: 1.54 billion parameters leave no room on a GPU of 24.0 GB")
    assert said["rl.max_tokens"] == "data=gsm8k" and said["run.processes"] == "hardware=1x24GB"


def test_a_file_and_the_command_line_are_above_what_follows(folder: Path) -> None:
    (folder / "rl.yaml").write_text("tokens_per_microbatch: 1536\n")
    params = load_params(folder, overrides=[*CHOICES, "rl.lora={}"])
    assert params.rl.tokens_per_microbatch == 1536 and params.training.backend == "torch"
    assert params.rl.optimizer.lr == pytest.approx(1e-5), "adapters take ten times the rate"
    set_too = load_params(folder, overrides=[*CHOICES, "rl.lora={}", "rl.optimizer.lr=3e-6"])
    assert set_too.rl.optimizer.lr == 3e-6


def test_weights_of_4_bits_stay_with_the_torch_backend(folder: Path) -> None:
    coded = ["rl.lora={frozen: nf4}", "sft.lora={frozen: nf4}", "model=Qwen/Qwen2.5-7B-Instruct"]
    whole = ["rl.lora={}", "sft.lora={}", "model=Qwen/Qwen2.5-7B-Instruct"]
    assert load_params(folder, overrides=[*CHOICES, *whole]).training.backend == "deepspeed"
    assert load_params(folder, overrides=[*CHOICES, *coded]).training.backend == "torch"
    for setting in ("model.precision=float16", "dpo.lora={frozen: nf4}", "rl.advantage.critic.lora={frozen: nf4}"):
        ppo = ["rl.advantage={type: gae, critic: {}}"] if "critic" in setting else []
        with pytest.raises(UserError, match=r"training.*backend fsdp .*: set backend to torch, or"):
            load_params(folder, overrides=[*CHOICES, *ppo, setting, "training.backend=fsdp"])


def test_only_the_stages_of_a_run_have_to_fit(folder: Path) -> None:
    large = layers(folder, "data=gsm8k", "model=Qwen/Qwen2.5-7B-Instruct", "method=grpo", "hardware=1x8GB")
    assert large.params().rl.optimizer.lr == 1e-6, "without stages nothing is refused"
    with pytest.raises(UserError, match=r"do not fit 1x8GB: it would fit with LoRA .*, or 2x80GB, or a smaller model"):
        large.derive(stages=["curate", "sft", "rl"])
    assert large.derive(stages=["curate", "evaluate"])


@pytest.mark.parametrize("section", ["sft", "rl", "dpo", "reward_model", "rl.advantage.critic"])
@pytest.mark.parametrize(("optimizer", "times"), [("adamw", 1), ("muon", 10)])
def test_a_bare_optimizer_of_random_weights_has_a_rate_for_them(section: str, optimizer: str, times: int) -> None:
    """Not a pretrained model's, of the demo as of any other model of random weights."""
    for choices in ([], ["data=chain", "model=toy", "rl.optimizer.lr=0.1"], ["model.base={type: fresh, layers: 1}"]):
        demo = read_layers(DEMO, None, None, split_choices(choices)[0])
        settings = ["rl.advantage=gae", f"{section}.optimizer={optimizer}"]
        rate = value_at(demo.params(settings), f"{section}.optimizer.lr")
        assert rate == pytest.approx(RATES[section].fresh * times)
        assert demo.said_by(settings)[f"{section}.optimizer.lr"].startswith("derived: random weights, ")
        typed = demo.params([*settings, f"{section}.optimizer.lr=0.5"])
        assert value_at(typed, f"{section}.optimizer.lr") == 0.5


def test_rates_lengths_and_a_name_follow_for_the_toy() -> None:
    """Its responses are as long as RL's, of which its data have a length."""
    lengths = [f"{stage}.max_tokens" for stage in ("difficulty", "sample", "evaluate")]
    rates = ["dpo.optimizer.lr", "reward_model.optimizer.lr"]
    assert [each.key for each in read_layers(DEMO).derive()] == [*lengths, *rates, "register.name"]
    longer = read_layers(DEMO).params(["rl.max_tokens=100", "sample.max_tokens=90"])
    assert (longer.difficulty.max_tokens, longer.sample.max_tokens, longer.evaluate.max_tokens) == (100, 90, 100)


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ([], "mathrl-chain"),
        (["data=gsm8k"], "mathrl-gsm8k"),
        (["data=gsm8k+math", "model=Qwen/Qwen2.5-1.5B-Instruct"], "qwen2.5-1.5b-instruct-gsm8k-math"),
        (["preset=gsm8k", "model=models/Mine"], "mine-gsm8k"),
        (["preset=gsm8k-ppo-24gb"], "qwen2.5-0.5b-gsm8k-ppo"),
    ],
)
def test_a_model_is_registered_by_what_it_is_and_learned_from(choices: list[str], name: str) -> None:
    """Over the demo's composition, whose model is mathrl-chain."""
    preset = next((word.removeprefix("preset=") for word in choices if word.startswith("preset=")), None)
    groups = [word for word in choices if not word.startswith("preset=")]
    assert load_params(DEMO, preset=preset, overrides=groups).register_.name == name
    assert load_params(DEMO, preset=preset, overrides=[*groups, "register.name=mine"]).register_.name == "mine"


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
