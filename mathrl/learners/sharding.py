"""ZeRO 3 or FSDP for models that do not fit one rank: sharded as they are loaded, and scored layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from mathrl.learners.deepspeed_config import deepspeed_config
from mathrl.learners.deepspeed_internals import import_deepspeed, make_engine, release, without_trace
from mathrl.learners.distributed import Ranks
from mathrl.models.context_parallel import heads_of
from mathrl.models.device import hardware_of
from mathrl.models.fsdp import is_divided, layer_by_layer, rank_mesh, start
from mathrl.models.load import plain_dtype
from mathrl.models.scores import prepare
from mathrl.models.shapes import check_heads
from mathrl.models.sharding import is_sharded, sharded_loads
from mathrl.params.optimizer import AdamW
from mathrl.params.run import Model


def _config(ranks: Ranks, dtype: torch.dtype) -> dict[str, Any]:
    settings = ranks.training.deepspeed.model_copy(update={"offload_optimizer": False})
    half, hardware = dtype == torch.bfloat16, hardware_of(ranks.device)
    config = deepspeed_config(settings, AdamW(lr=0.0), half=half, hardware=hardware)
    if half:  # else deepspeed.zero.Init rounds all buffers, such as the frequencies of rotary positions
        config["data_types"] = {**config["data_types"], "keep_in_fp32_modules": ["*"]}
    return config


def load_to_train(load: Callable[..., Any], folder: Path | str, model: Model, ranks: Ranks) -> Any:
    """The model that `load` (`load_model` or `load_scorer`) makes of a folder, as the backend trains it.

    With ZeRO 3 or FSDP it is sharded while it is loaded.

    Raises:
        UserError: the ranks that share micro-batches cannot divide its heads.
    """
    backend = ranks.training.backend
    zero_3 = backend == "deepspeed" and ranks.training.deepspeed.stage == 3
    mesh = rank_mesh(ranks.device) if backend == "fsdp" else None
    with _load_sharded(ranks, plain_dtype(model)) if zero_3 else nullcontext():
        network = load(folder, model, ranks.device, plain=ranks.divides, mesh=mesh)
    check_heads(*heads_of(network.config), ranks.training.context_ranks)
    return network


def sharded_like(network: Any, ranks: Ranks) -> AbstractContextManager[None]:
    """Context in which transformers makes models sharded if ZeRO 3 shards this one (`make_scorer`, `sharded_copy`)."""
    by_zero = is_sharded(network) and not is_divided(network)
    return _load_sharded(ranks, network.dtype) if by_zero else nullcontext()


def _load_sharded(ranks: Ranks, dtype: torch.dtype) -> AbstractContextManager[None]:
    import_deepspeed(ranks)
    return sharded_loads(_config(ranks, dtype))


class FrozenModel:
    """A model that does not learn. If it is sharded, `while_scoring` gathers it layer by layer."""

    def __init__(self, model: Any, ranks: Ranks) -> None:
        self.model, self.engine = model, None
        if not is_sharded(model):
            return
        prepare(model, ranks.context)
        if is_divided(model):
            start(model)
        else:
            self.engine = make_engine(model, None, _config(ranks, model.dtype), ranks)

    def while_scoring(self) -> AbstractContextManager[None]:
        """See `Learner.while_scoring`."""
        if is_divided(self.model):
            return layer_by_layer(self.model)
        return nullcontext() if self.engine is None else without_trace(self.engine)

    def close(self) -> None:
        """Take DeepSpeed's hooks off the model, so that it can learn."""
        if self.engine is not None:
            release(self.engine, self.model)
            self.engine = None


@contextmanager
def while_scoring(model: Any, ranks: Ranks) -> Iterator[None]:
    """Context for forward passes of a model that has no learner yet."""
    frozen = FrozenModel(model, ranks)
    try:
        with frozen.while_scoring():
            yield
    finally:
        frozen.close()
