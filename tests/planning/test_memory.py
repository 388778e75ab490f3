"""Planned memory against what models, optimizers and autograd really hold, and against published figures."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.cli.plan import plan_run, size_in_bytes
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError
from mathrl.learners.optimizer import FlatParameters, OptimizerSet
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.linear import use_half_products
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.model_shape import config_of, shape_of
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group, pack
from mathrl.models.shapes import ModelShape
from mathrl.models.small_copy import small_config
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.optimizer import AdamW, AdamW8Bit, Lora, Muon
from mathrl.params.run import FreshModel, PretrainedModel
from mathrl.params.schema import Params
from mathrl.planning.gpu_phases import check_vllm_share
from mathrl.planning.memory import RUNTIME, advise, kept_activations, plan_memory
from mathrl.planning.memory_states import GIB, divided_states, gathered_at_once, trainable, trained_states
from tests.learners.kept_bytes import kept_bytes

ROOT = Path(__file__).parents[2]
BASE = FreshModel(hidden_size=64, intermediate_size=176, layers=3, heads=4, kv_heads=2)


def params(*overrides: str, preset: str | None = None) -> Params:
    return read_layers(ROOT / "params", preset).stated_params(overrides)


def network(base: FreshModel = BASE, bfloat16: bool = True) -> Any:
    model = fresh_network(base, character_tokenizer(base), seed=0)
    use_fast_norms(model)
    if bfloat16:
        use_half_products(model)
    return model


@pytest.mark.parametrize(
    ("bfloat16", "recomputed", "adapters"),
    [
        (True, True, False),
        (True, False, False),
        (False, True, False),
        (False, False, False),
        (True, False, True),
        (False, False, True),
    ],
)
def test_activations_are_what_autograd_keeps(bfloat16: bool, recomputed: bool, adapters: bool) -> None:
    model = network(bfloat16=bfloat16)
    if adapters:
        add_lora(model, Lora(r=2), seed=0)
    groups = [Group([5 + i] * 20, [[7 + i] * 60] * 4) for i in range(4)]
    response_logprobs(model, groups[:1])
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    own |= {
        each.__dict__["_product"].rounded[1].untyped_storage().data_ptr()
        for each in model.modules()
        if "_product" in each.__dict__
    }

    with kept_bytes(own) as kept:
        response_logprobs(model, groups)
    tokens = pack(groups).input_ids_1T.shape[1]
    precision = "bfloat16" if bfloat16 else "float32"
    shape = shape_of(model.config)
    given = params(f"model.precision={precision}")
    parts = kept_activations(shape, tokens, 80, given, recomputed, adapters)
    table = 4 * tokens * shape.vocabulary  # of the logits' softmax
    if recomputed:  # one layer is made again in the backward pass, so it is not among what is kept
        planned = parts["activations: inputs of the layers"] + table
    else:
        planned = parts["activations"] + parts["attention probabilities"] + table
    planned += parts["activations: after the last layer"]
    assert sum(kept.values()) == pytest.approx(planned, rel=0.07)


@pytest.mark.parametrize("kind", ["adamw", "muon", "adamw_8bit"])
@pytest.mark.parametrize("lora", [None, Lora(r=4), Lora(r=64)])
def test_trained_bytes_are_the_learners(kind: Any, lora: Lora | None) -> None:
    model = network(bfloat16=False)
    shape = shape_of(model.config)
    if lora is not None:
        add_lora(model, lora, seed=0)
    optimizer = {"adamw": AdamW, "muon": Muon, "adamw_8bit": AdamW8Bit}[kind](lr=1e-3)
    flat = FlatParameters(model)
    learner = OptimizerSet(model, flat, optimizer, 10)
    flat.gradients.fill_(0.1)
    learner.step(0)
    planned = trained_states(shape, optimizer, lora, "policy")
    assert trainable(shape, lora) == flat.weights.numel()
    assert planned["policy: weights"] == 4 * sum(weight.numel() for weight in model.parameters())
    assert planned["policy: gradients"] == flat.gradients.nbytes
    states = sum(value.nbytes for value in learner.state().values() if value.dim())
    # A last block of fewer than 256 weights has scales of its own.
    assert planned["policy: optimizer states"] == pytest.approx(states, rel=1e-3 if kind == "adamw_8bit" else 0)


def test_muon_keeps_one_moment_of_experts() -> None:
    """The plan leaves out the routers, which Muon trains too."""
    config = small_config(AutoConfig.for_model("qwen3_moe"))
    model, shape = AutoModelForCausalLM.from_config(config), shape_of(config)
    flat = FlatParameters(model)
    learner = OptimizerSet(model, flat, Muon(lr=1e-3), 10)
    flat.gradients.fill_(0.1)
    learner.step(0)
    states = sum(value.nbytes for value in learner.state().values() if value.dim())
    routers = sum(weight.numel() for name, weight in model.named_parameters() if name.endswith("mlp.gate.weight"))
    planned = trained_states(shape, Muon(lr=1e-3), None, "policy")["policy: optimizer states"]
    assert planned - states == 4 * routers and routers < 0.01 * shape.experts


def zero(stage: int, *more: str, processes: int = 64) -> Params:
    return params(
        f"run.processes={processes}", "training.backend=deepspeed", f"training.deepspeed.stage={stage}", *more
    )


def test_zero_divides_as_its_paper_says() -> None:
    # arXiv:1910.02054, figure 1: 7.5 billion parameters, 64 processes: 31.4, 16.6 and 1.9 GB, with gradients
    # of 2 bytes; here they are float32.
    shape = ModelShape(1, 1, 10**9, 1, 1, 1, 1, 7_500_000_000, 0, 0, True)
    for stage, published in ((1, 31.4e9), (2, 16.6e9), (3, 1.9e9)):
        device, host = divided_states(shape, None, zero(stage), "policy")
        more = 2 * 7.5e9 / (64 if stage > 1 else 1)
        assert sum(device.values()) - more == pytest.approx(published, rel=0.02) and not host
    for stage, parameters in ((2, False), (3, True)):
        offload = [f"training.deepspeed.offload_parameters={str(parameters).lower()}"]
        given = zero(stage, "training.deepspeed.offload_optimizer=true", *offload)
        device, host = divided_states(shape, None, given, "policy")
        assert sum(host.values()) == pytest.approx((2 * parameters + 4 + 12) * 7.5e9 / 64)
        assert sum(device.values()) == (0 if parameters else 2 * 7.5e9)


def test_what_zero_3_makes_whole_is_counted() -> None:
    # 32.8 billion parameters in bfloat16 over 128 processes, by hand.
    whole, layer = 2 * 32_763_876_352, 2 * 152_064 * 5_120
    given = params(preset="dapo-32b")
    shape = shape_of(config_of(given.model.base))
    assert gathered_at_once(shape, given) == 2 * 200e6 + layer
    assert gathered_at_once(shape, zero(2, "model.precision=bfloat16")) == 0
    vllm = plan_memory(shape, given, "rl", "cuda", gpu_memory=80e9)
    # Loaded, sent and exported a bucket at a time; never the whole model.
    assert vllm.early["start"]["policy: weights as loaded"] == whole / 128
    assert vllm.phases["export"] == {"policy: gathered weights": layer}
    assert vllm.phases["weight sync"]["weights in transit to the sampler"] == 2 * layer
    # Of vLLM's share, tables, graphs and NCCL's buffers stay while it sleeps.
    kept = sum(size for name, size in vllm.standing.items() if name.startswith("vLLM"))
    assert sum(vllm.phases["rollouts"].values()) + kept == pytest.approx(0.7 * 80e9)
    assert sum(vllm.early["start"].values()) == pytest.approx(0.7 * 80e9 + whole / 128 + RUNTIME["cuda"])
    torch_engine = params("rollout.engine=torch", preset="dapo-32b")
    found = plan_memory(shape, torch_engine, "rl", "cuda", gpu_memory=80e9)
    assert found.phases["rollouts"]["policy: gathered weights"] == whole
    ahead = params("rollout.engine=torch", "rl.asynchronous={}", "rl.dynamic_sampling=null", preset="dapo-32b")
    found = plan_memory(shape, ahead, "rl", "cuda", gpu_memory=80e9)
    assert found.standing["sampler's copy of the weights"] == whole
    assert "policy: gathered weights" not in found.phases["rollouts"]
    # Awake, vLLM is there at the end as well.
    awake = plan_memory(shape, params("rollout.vllm.sleep=false", preset="dapo-32b"), "rl", "cuda", gpu_memory=80e9)
    assert awake.phases["rollouts"] == {} and awake.totals["rollouts"] > 0.7 * 80e9
    assert awake.totals["forward and backward"] == pytest.approx(
        vllm.totals["forward and backward"] + 0.7 * 80e9 - kept
    )


def test_the_plan_refuses_a_share_that_vllm_would_refuse() -> None:
    given = params(preset="countdown-grpo-zero-24gb")
    shape = shape_of(config_of(given.model.base))
    check_vllm_share(shape, given, 24e9)
    small = params("rollout.vllm.memory_share=0.3", preset="countdown-grpo-zero-24gb")
    with pytest.raises(UserError, match=r"memory_share 0\.3 of a GPU .* no cache for one sequence of 1320 tokens"):
        check_vllm_share(shape, small, 24e9)
    check_vllm_share(shape, params("rollout.engine=torch", preset="countdown-grpo-zero-24gb"), 24e9)


def test_vllm_on_a_cpu_never_sleeps() -> None:
    given = params("rollout.engine=vllm", "rollout.vllm.sleep=true")
    shape = shape_of(network().config)
    found = plan_memory(shape, given, "rl", "cpu")
    assert found.standing["vLLM: cache"] == GIB and "vLLM: cache" not in found.phases["rollouts"]


def test_a_tool_needs_room_for_what_is_kept_while_calls_run() -> None:
    shape = shape_of(network().config)
    plain, called = (
        plan_memory(shape, params("rollout.engine=torch", *more), "rl", "cpu").phases["rollouts"]["key-value cache"]
        for more in ((), ("rollout.tool.kind=bubblewrap",))
    )
    assert called == pytest.approx(plain * 2.5 / 1.5)


def test_ppo_of_half_a_billion_part_by_part_by_hand() -> None:
    """Qwen2.5-0.5B's config and the preset's sizes, multiplied out here; 19.4 GB in all."""
    given = params("rollout.engine=torch", preset="gsm8k-ppo-24gb")
    found = plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda", gpu_memory=24e9)
    matrices = 24 * (896 * 896 + 2 * 896 * 128 + 896 * 896 + 3 * 896 * 4864)
    biases, norms, embedding = 24 * (896 + 2 * 128), 24 * 2 * 896 + 896, 151_936 * 896
    everything = matrices + biases + norms + embedding
    critic = everything + 896  # a value instead of a head, which is the embedding
    assert everything == 494_032_768
    assert found.standing == pytest.approx(
        {
            "CUDA context": 0.6 * 2**30,
            "policy: weights": 2 * everything,
            "policy: float32 masters": 4 * everything,
            "policy: optimizer states": 8 * everything,
            "reference": 2 * everything,
            "critic: weights": 2 * critic,
            "critic: float32 masters": 4 * critic,
            "gradients (policy, then critic)": 4 * critic,
            "critic: optimizer states": 8 * critic,
        }
    )
    tokens = 4096  # of a micro-batch; a minibatch has 64 x 768
    # Tied to the head: both gradients and their sum in float32, more than the logits or a layer at any time.
    assert tokens * (24 * 2 * 896 + 6 * 896) + 2 * 4 * 24e9 / 256 + 4 * embedding < 12 * embedding
    assert sum(found.phases["forward and backward"].values()) == 12 * embedding
    # 64 sequences of 768: keys and values of two heads of 64 in 24 layers, float32, half as much again.
    cache = 1.5 * 64 * 768 * 24 * 2 * (2 * 64) * 4
    assert found.phases["rollouts"]["key-value cache"] == cache
    assert found.peak == pytest.approx(19.45e9, rel=1e-3) and found.peak < 0.95 * 24e9


OFFLOADED = ["training.backend=deepspeed", "training.deepspeed.offload_optimizer=true"]
# veRL's quick start has this share, and its vLLM does not sleep in these figures.
BESIDE_VLLM = ["rollout.engine=vllm", "rollout.vllm.memory_share=0.4", "rollout.vllm.sleep=false"]
BILLION = "model.base.path=Qwen/Qwen2.5-1.5B-Instruct"
LORAS = ["rl.lora={}", "rl.advantage.critic.lora={}", "training.backend=deepspeed", "rl.tokens_per_microbatch=1024"]


@pytest.mark.parametrize(
    "overrides,published,within",
    [([*OFFLOADED, *BESIDE_VLLM], 18e9, 0.07), ([BILLION, *LORAS, *BESIDE_VLLM], 20e9, 0.03)],
)
def test_ppo_beside_vllm_is_near_the_published_points(overrides: list[str], published: float, within: float) -> None:
    given = params(*overrides, preset="gsm8k-ppo-24gb")
    found = plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda", gpu_memory=24e9)
    assert found.peak == pytest.approx(published, rel=within)


def test_offloaded_gradients_stay_on_the_gpu_until_the_step() -> None:
    """DeepSpeed's buffer of float32 gradients, 4 bytes per parameter, is why the published 22 GB are not reached."""
    given = params(BILLION, *OFFLOADED, *BESIDE_VLLM, preset="gsm8k-ppo-24gb")
    shape = shape_of(config_of(given.model.base))
    found = plan_memory(shape, given, "rl", "cuda", gpu_memory=24e9)
    held = 4 * 1_543_714_304
    assert found.phases["optimizer step"] == {"policy: gradients until the step": held}
    assert found.phases["forward and backward"]["policy: gradients until the step"] == held
    assert found.host["policy: gradients"] == held
    assert found.peak - held == pytest.approx(22e9, rel=0.01)
    float32 = params("model.precision=float32", BILLION, *OFFLOADED, *BESIDE_VLLM, preset="gsm8k-ppo-24gb")
    found = plan_memory(shape, float32, "rl", "cuda", gpu_memory=24e9)
    assert found.phases["optimizer step"] == {"policy: gradients until the step": 0}


def test_phases_of_eight_gpus_by_hand() -> None:
    """Qwen2-7B over 8 GPUs: start and first sync before the update, and what sleeping vLLM gives back."""
    given = params(preset="gsm8k-grpo-8gpu")
    found = plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda", gpu_memory=80e9)
    weights, share = 2 * 7_615_616_512, 0.5 * 80e9
    assert sum(found.early["start"].values()) == pytest.approx(RUNTIME["cuda"] + weights / 8 + share)
    asleep = {name for name in found.standing if name.startswith("vLLM")}
    assert asleep == {"vLLM: sampler's tables", "vLLM: CUDA graphs", "vLLM: NCCL"}
    assert found.standing["reference"] == weights / 8
    assert found.phases["weight sync"]["vLLM: weights"] == weights
    assert "vLLM: cache" not in found.phases["weight sync"]
    order = ["start", "first weight sync", "rollouts", "weight sync", "scoring", "forward and backward"]
    assert list(found.totals) == [*order, "optimizer step", "export"]
    assert found.peak == found.totals["first weight sync"] and found.largest_phase == "first weight sync"


def test_ppo_without_vllm_is_near_the_published_16_gb() -> None:
    # docs/how_to/planning.md explains the rest by its parts, and names what fits a card of 16 GB.
    given = params("rollout.engine=torch", "rl.tokens_per_microbatch=1024", "rl.kl.coef=0", preset="gsm8k-ppo-24gb")
    shape = shape_of(config_of(given.model.base))
    found = plan_memory(shape, given, "rl", "cuda", gpu_memory=24e9)
    assert found.peak == pytest.approx(16e9, rel=0.16)
    copies = [part for part in found.standing if part in ("policy: weights", "critic: weights")]
    assert found.peak - sum(found.standing[name] for name in copies) == pytest.approx(16e9, rel=0.05)
    offloaded = params("rollout.engine=torch", *OFFLOADED, preset="gsm8k-ppo-24gb")
    assert plan_memory(shape, offloaded, "rl", "cuda", gpu_memory=24e9).peak == pytest.approx(7.3e9, rel=0.01)


@pytest.mark.parametrize(
    "preset,gpus,memory",
    [
        ("gsm8k-ppo-24gb", 1, 24e9),
        ("gsm8k-ppo-quickstart", 1, 24e9),
        ("gsm8k-grpo-8gpu", 8, 80e9),
        ("deepseekmath-rl", 8, 80e9),
        ("rlinf-1.5b", 64, 80e9),
        ("countdown-grpo-zero-48gb", 1, 48e9),
        ("countdown-grpo-zero-24gb", 1, 24e9),
        ("dapo-32b", 128, 80e9),
        ("qwen2.5-0.5b-gsm8k", 1, 24e9),
    ],
)
def test_presets_fit_the_hardware_that_they_name(preset: str, gpus: int, memory: float) -> None:
    given = params(f"run.processes={gpus}", preset=preset)
    shape = shape_of(config_of(given.model.base))
    assert plan_memory(shape, given, "rl", "cuda", gpu_memory=memory).peak < 0.95 * memory


def test_advice_fits_and_holds_nothing_that_is_not_needed() -> None:
    settings = ("run.processes=1", "rollout.engine=torch")
    start = params(*settings, preset="qwen2.5-0.5b-gsm8k")
    shape = shape_of(config_of(start.model.base))

    def planned(chosen: Params) -> Any:
        return plan_memory(shape, chosen, "rl", "cuda")

    def resolved(more: Sequence[str]) -> Params | None:
        try:
            return params(*settings, *more, preset="qwen2.5-0.5b-gsm8k")
        except UserError:
            return None

    assert advise(start, "rl", 1e12, resolved, planned) == []
    assert advise(start, "rl", 1e8, resolved, planned) is None
    for room in (16 * GIB, 10 * GIB, 6 * GIB):
        changes = advise(start, "rl", room, resolved, planned)
        assert changes and planned(resolved(changes) or start).peak <= room
        for each in changes:
            fewer = resolved([other for other in changes if other != each])
            assert fewer is None or planned(fewer).peak > room, each


def test_the_command_says_what_to_change(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(ROOT)
    context: Any = SimpleNamespace(invoked_subcommand=None)
    plan_run(context)
    printed = capsys.readouterr().out
    assert printed.startswith("sft fits this machine: it needs ") and "\ntime: " in printed.split("\n\n")[0]
    assert "0.5 million parameters, 2 processes" in printed and "key-value cache" in printed
    with pytest.raises(SystemExit):
        plan_run(context, ["qwen2.5-0.5b-gsm8k"], gpus=1, gpu_memory="8")
    out = capsys.readouterr().out
    assert out.startswith("--gpu-memory: read as 8GB\nrl does not fit 8GB; it fits with these settings:\n    --set")
    # As the stage would refuse it, and what is left to change once sharding and offload follow by themselves.
    assert "gives vLLM 2.24 GiB" in out and "--set 'rollout.max_sequences=64'" in out
    assert "first weight sync" in out and "rl, changed: " in out
    for wrong in ("much", "24000000000", "0", "24 apples", "."):
        with pytest.raises(UserError, match="24GB"):
            size_in_bytes(wrong)
    with pytest.raises(UserError, match="no such model folder"):
        config_of(PretrainedModel(path="./nothing"))


def test_the_command_names_a_fit_without_margin_and_the_way_to_plan_for_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(ROOT)
    context: Any = SimpleNamespace(invoked_subcommand=None)
    narrow = "no margin for fragmentation: lower rl.tokens_per_microbatch"
    for memory in ("24GB", "25GB", "48GB"):
        plan_run(context, ["countdown-grpo-zero-24gb"], gpu_memory=memory)
        line = capsys.readouterr().out.splitlines()[0]
        left = re.match(rf"rl fits {memory}; (\d+)% of it is left", line)
        assert left and (narrow in line) == (int(left[1]) < 3), line
        assert (narrow in line) == (memory == "24GB")
    assert "--gpu-memory" not in line
    with suppress(SystemExit):  # it may not fit this machine
        plan_run(context, ["countdown-grpo-zero-24gb"], ["hardware=laptop"])
    assert "that is a plan for CPUs: for GPUs give the memory of one, e.g. --gpu-memory 24GB" in capsys.readouterr().out
    plan_run(context)
    assert "plan for CPUs" not in capsys.readouterr().out, "the demo's fresh model is meant for them"
