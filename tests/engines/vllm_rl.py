"""Run by test_vllm.py: RL with vLLM, and syncs broken on purpose; writes its results as JSON.

vllm_rl.py OUT in one process; as one of two ranks (tests/forked_ranks.py) the torch backend and ZeRO 3.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import Tensor

import mathrl.rollout.vllm_engine as vllm_engine
from mathrl.core.environment import rank, world_size
from mathrl.core.errors import UserError
from mathrl.learners import deepspeed_learner
from mathrl.learners.deepspeed_learner import DeepSpeedLearner
from mathrl.learners.distributed import Ranks
from mathrl.learners.sharding import load_to_train
from mathrl.models import sharding
from mathrl.models.device import torch_settings
from mathrl.models.load import load_model, load_tokenizer, make_base
from mathrl.models.weights import full_weights, with_head
from mathrl.params.loss import LossKl, Truncated
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.rollout import Rollout, Vllm
from mathrl.params.run import Model, Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.params.training import DeepSpeed, Training
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from tests.engines.tiny_rl import MODEL, STEPS, run_rl
from tests.engines.vllm_greedy import greedy
from tests.engines.vllm_turns import turns_in_process
from tests.models.family_cells import result

BEFORE_FORKS = ("deepspeed",)
torch.set_num_threads(1)
ROLLOUT = Rollout(engine="vllm", max_sequences=32, vllm=Vllm(sleep=True))  # sleep has no effect on a CPU
# With an eps of 1e-3, AdamW's first steps do not turn a rounding error of 1e-8 into a full step.
ZERO_STEPS = STEPS.model_copy(
    update={"ema": None, "steps": 3, "optimizer": AdamW(lr=3e-2, warmup_steps=0, eps=1e-3), "importance": Truncated()}
)
ZERO = Training(backend="deepspeed", deepspeed=DeepSpeed(stage=3))
PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(5, 40))]
PLAIN_PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]


class Trial:
    """A model folder, the network that is trained from it, and the process's vLLM engine."""

    def __init__(self, folder: Path, where: Path, rollout: Rollout = ROLLOUT) -> None:
        self.folder, self.where = folder, where
        self.tokenizer = load_tokenizer(folder)
        self.runs = 0
        self.network = load_model(folder, MODEL, "cpu")
        self.engine: Any = training_engine(self.network, folder, self.tokenizer, MODEL, rollout, False)

    def train(self, params: Rl = STEPS, training: Training | None = None) -> list[dict[str, float]]:
        """The logged rows of a run from the folder's weights."""
        self.runs += 1
        ranks = Ranks(torch.device("cpu"), training)
        self.network = load_to_train(load_model, self.folder, MODEL, ranks)
        sampler = Sampler(self.engine, self.tokenizer, Prompt())
        state = self.where / f"run{self.runs}"
        return run_rl(self.network, sampler, params, ranks, state)

    def error_of(self, params: Rl = STEPS, training: Training | None = None) -> str:
        """The error that a run ends with; empty if it does not."""
        try:
            self.train(params, training)
        except UserError as error:
            return str(error)
        return ""


def without(left_out: Callable[[str], bool]) -> Any:
    def send(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in with_head(weights) if not left_out(name))

    return send


def untied(folder: Path, target: Path) -> Path:
    """The same model with a separate head."""
    network = load_model(folder, MODEL, "cpu")
    network.config.tie_word_embeddings = False
    head = network.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().flip(0).contiguous())
    network.save_pretrained(target)
    load_tokenizer(folder).save_pretrained(target)
    return target


class Gathered:
    """The maximum number of elements of the divided network that were gathered at a time: during rollouts, during a
    weight sync, and in a layer that runs without a gradient."""

    BUCKET = 20_000

    def __init__(self) -> None:
        self.most = {"network": 0, "rollouts": 0, "sync": 0, "scoring": 0}
        sharding.BUCKET = self.BUCKET
        config, weights = DeepSpeedLearner._config, deepspeed_learner.gathered_weights
        generate, linear = vllm_engine.VllmEngine.generate, torch.nn.Linear.forward

        def divided(learner: Any) -> dict[str, Any]:
            settings = config(learner)
            self.network = learner.model
            # By default weights of less than 100,000 elements, as all of these have, stay whole.
            settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
            return settings

        def sent(parts: Any) -> Iterator[tuple[str, Tensor]]:
            for each in weights(parts):
                self.note("sync")
                yield each

        def sampled(engine: Any, *given: Any) -> Any:
            self.note("rollouts")
            return generate(engine, *given)

        def computed(layer: Any, input: Tensor) -> Tensor:
            if not torch.is_grad_enabled() and layer in self.network.modules():
                self.note("scoring")
            return linear(layer, input)

        DeepSpeedLearner._config = divided  # type: ignore[method-assign]
        deepspeed_learner.gathered_weights = sent
        vllm_engine.VllmEngine.generate = sampled  # type: ignore[method-assign]
        torch.nn.Linear.forward = computed  # type: ignore[method-assign]
        self.network: Any = torch.nn.Module()

    def note(self, when: str) -> None:
        own = [each for each in self.network.parameters() if hasattr(each, "ds_status")]
        whole = sum(each.ds_numel for each in own if each.ds_status.name == "AVAILABLE")
        self.most[when] = max(self.most[when], whole)
        self.most["network"] = max(self.most["network"], sum(each.ds_numel for each in own))


def mapped(part: str) -> list[str]:
    """The files with this part in their names that the process has mapped."""
    rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({row[5] for row in rows if len(row) > 5 and part in row[5]})


def on_two_processes(where: Path) -> None:
    """Every run with the torch backend and with ZeRO 3, with one engine per process."""
    first = rank() == 0
    if first:
        make_base(MODEL, where / "tied", seed=0)
        untied(where / "tied", where / "untied")
    Ranks(torch.device("cpu"), ZERO).gather(None)  # the folders are there
    results: dict[str, Any] = {}
    gathered = Gathered()
    for kind in ("tied", "untied"):
        trial = Trial(where / kind, where / f"{kind} runs {rank()}")
        for name, training in (("torch", Training()), ("zero 3", ZERO)):
            results[f"{kind}, {name}"] = trial.train(ZERO_STEPS, training)
        if kind == "tied":
            adapted = ZERO_STEPS.model_copy(update={"lora": Lora(r=4), "kl": LossKl(coef=0.1), "steps": 2})
            results["lora"] = trial.train(adapted, ZERO)
            vllm_engine.with_head = without(lambda name: name == "lm_head.weight")
            results["zero 3, without head"] = trial.error_of(ZERO_STEPS, ZERO)
            vllm_engine.with_head = with_head
    results["gathered"] = gathered.most
    halves = ROLLOUT.model_copy(update={"vllm": Vllm(tensor_parallel=2)})
    results["halves"] = Trial(where / "tied", where / f"halves {rank()}", halves).train(ZERO_STEPS)
    results["shared memory"] = mapped("cpushm")
    # vLLM's build for processors without AVX-512 has no such memory: there gloo carries the halves' sums.
    results["shares memory"] = hasattr(torch.ops._C, "init_shm_manager")
    if first:
        (where / "results.json").write_text(json.dumps(results))


def state() -> dict[str, str]:
    """Torch's settings, its function that sets threads, and the environment but for vLLM's own variables."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    settings = torch_settings() | {"set_num_threads": torch.set_num_threads}
    return variables | {name: str(value) for name, value in settings.items()}


def in_one_process(where: Path) -> None:
    make_base(MODEL, where / "tied", seed=0)
    torch.backends.cuda.matmul.allow_tf32 = True  # vLLM's worker switches it off
    before = state()
    tied = Trial(where / "tied", where)
    results: dict[str, Any] = {"state": [before, state()]}
    torch.backends.cuda.matmul.allow_tf32 = False
    results["rows"] = tied.train()
    sampling = Sampling(4, 0.8, 12)
    tied.engine.sync(full_weights(tied.network))
    first = tied.engine.generate(PROMPTS, sampling, 3)
    results["repeats"] = [
        tied.engine.generate(PROMPTS, sampling, 3) == first,
        tied.engine.generate(PROMPTS[:2], sampling, 3) == first[:2],
        tied.engine.generate(PROMPTS, sampling, 4) != first,
        all(len({tuple(each.tokens) for each in row}) > 1 for row in first),
    ]
    results["lora"] = tied.train(STEPS.model_copy(update={"lora": Lora(r=4)}))
    results["importance"] = tied.train(STEPS.model_copy(update={"importance": Truncated(when="other_engine")}))
    results["ahead"] = tied.train(STEPS.model_copy(update={"steps": 3, "asynchronous": Asynchronous(pace="fixed")}))
    for name, left_out in {
        "head": lambda name: name == "lm_head.weight",
        "layer": lambda name: ".layers.1.mlp." in name,
        "embedding": lambda name: "embed_tokens" in name,
    }.items():
        vllm_engine.with_head = without(left_out)
        results[f"without {name}"] = tied.error_of()
        vllm_engine.with_head = with_head
        tied.engine.sync(full_weights(load_model(tied.folder, MODEL, "cpu")))
    try:
        tied.engine.generate(PROMPTS, Sampling(1, 1.0, 128), 0)
    except UserError as error:
        results["too long"] = str(error)
    results["untied"] = Trial(untied(where / "tied", where / "untied"), where / "second").train()
    results["turns"] = turns_in_process(where / "tied")
    make_base(Model(precision="float32"), where / "plain", seed=0)
    results["greedy"] = greedy(where / "plain", PLAIN_PROMPTS)
    results["families"] = {family: result("vLLM", family) for family in ("qwen3", "olmo2")}
    (where / "results.json").write_text(json.dumps(results))


def main(where: Path) -> None:
    (in_one_process if world_size() == 1 else on_two_processes)(where)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
