"""The DeepSpeed backend: optimizer states, gradients and weights divided among the processes by ZeRO.

The optimizer is torch's own AdamW in its fused form, on the CPU too where it is offloaded: nothing is
compiled. DeepSpeed averages gradients over processes, so a loss is multiplied by their number first: the
gradient is that of the sum, as with the torch backend. In bfloat16 (model.precision) the model is of that
type, and ZeRO keeps float32 weights beside it for the optimizer.
"""

import errno
import importlib.util
import logging
import math
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mathrl.core.errors import UserError
from mathrl.core.out_of_memory import memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.distributed import Backend
from mathrl.learners.optimizer import schedule
from mathrl.learners.partition import filled
from mathrl.learners.torch_learner import check_bad
from mathrl.models.lora import weight_parts
from mathrl.models.scores import prepare
from mathrl.models.weights import with_head
from mathrl.params.train import Optimizer

Micro = TypeVar("Micro")
Part = tuple[str, list[Tensor], Callable[[], Tensor]]  # see weight_parts
BUCKET = 50_000_000  # elements that are sent at a time; DeepSpeed's own half a billion is 2 GB of buffer
LIVE = 4 * BUCKET  # elements that a pass of ZeRO 3 may keep whole beside the layer that it is in


class DeepSpeedLearner:
    """See `mathrl.learners.learner.Learner`."""

    def __init__(
        self,
        model: Any,
        params: Optimizer,
        lr: float,
        updates: int,
        backend: Backend,
        *,
        name: str,
        ema: float | None = None,
    ) -> None:
        check_supported(params, name, ema)
        self.model, self.params, self.lr, self.planned = model, params, lr, updates
        self.name, self.backend, self.stage = name, backend, backend.training.deepspeed.stage
        self.advice = (
            f"set training.deepspeed.stage to 3, training.deepspeed.offload_optimizer or {name}.lora, run "
            "more processes, or take a smaller model (model.base)"
        )
        prepare(model)  # before its weights are divided
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(
            trainable,
            lr=lr,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
            fused=True,
        )
        with memory_part("divided weights, gradients and optimizer states", self.advice):
            self.engine = _engine(_Pass(model), optimizer, self._config(), backend)
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0
        self.best: dict[str, Tensor] = {}
        self._gathered = False

    def _config(self) -> dict[str, Any]:
        given = self.backend.training.deepspeed
        zero: dict[str, Any] = {
            "stage": given.stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "overlap_comm": self.backend.device.type == "cuda",
        }
        if given.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": self.backend.device.type == "cuda"}
        if given.offload_parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": self.backend.device.type == "cuda"}
        if given.stage == 3:
            del zero["allgather_bucket_size"]
            zero["stage3_prefetch_bucket_size"] = BUCKET
            # DeepSpeed's own billion would leave a smaller model whole from the first pass on.
            zero["stage3_max_live_parameters"] = zero["stage3_max_reuse_distance"] = LIVE
        half = self.model.dtype == torch.bfloat16
        return {
            "train_micro_batch_size_per_gpu": 1,  # micro-batches are the trainer's own, by tokens
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,  # an update ends when step is called
            "gradient_clipping": self.params.clip_norm or 0.0,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": half, "check_grad_overflow": True},
            **({"data_types": {"grad_accum_dtype": "fp32"}} if half else {}),
        }

    def rounds(self, micros: Sequence[Micro], spare: Micro) -> Iterator[tuple[Micro, float]]:
        return self.backend.evened(micros, spare)

    def descend(self, compute: Callable[[], Tensor]) -> None:
        self.engine.backward(self.engine(compute) * self.backend.world, scale_wrt_gas=False)

    def reduce(self) -> None:
        """DeepSpeed has done it, or does it in its step."""

    def update(self, loss: float) -> None:
        factor = schedule(self.params, self.updates, self.planned)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.lr * factor
        if math.isfinite(loss):
            with memory_part("optimizer states", self.advice):  # made at the first step
                self.engine.step()  # which skips itself where the gradient is no number
        else:
            self.drop()
        self.norm, self.factor = float(self.engine.get_global_grad_norm()), factor
        if not (math.isfinite(self.norm) and math.isfinite(loss)):
            self.factor, self.bad = 0.0, self.bad + 1
            check_bad(self.bad, self.backend.training.most_bad_updates, self.name)
        self.updates += 1

    def drop(self) -> None:
        # A gradient that is no number is the one that DeepSpeed drops, with all that it keeps of it.
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.backend.device)
        self.descend(lambda: self.model(input_ids=ids, use_cache=False).logits.sum() * math.nan)
        self.engine.step()

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self.stage < 3 or self._gathered:
            yield
            return
        offload = self.engine.optimizer.parameter_offload
        with self._gather(self.model.parameters()):
            # The hooks would divide a layer's weights again as soon as it has run.
            _remove_hooks(offload)
            self._gathered = True
            try:
                yield
            finally:
                self._gathered = False
                offload._register_deepspeed_module(offload.module)

    @contextmanager
    def scoring(self) -> Iterator[None]:
        if self.stage < 3 or self._gathered:
            yield
            return
        offload = self.engine.optimizer.parameter_offload
        # What it knows of the order in training would have it fetch ahead for a backward pass.
        if not offload.get_param_coordinator().is_invalid_trace():
            offload.get_param_coordinator()._invalidate_trace()
        try:
            yield
        finally:
            offload.partition_all_parameters()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return with_head(self._in_buckets(list(weight_parts(self.model))))

    def _in_buckets(self, weights: Sequence[Part]) -> Iterator[tuple[str, Tensor]]:
        """The weights by their names, about BUCKET elements of them gathered at a time."""
        sizes = [sum(getattr(each, "ds_numel", each.numel()) for each in parts) for _, parts, _ in weights]
        for bucket in filled(weights, sizes, BUCKET):
            with self._gather(each for _, parts, _ in bucket for each in parts):
                for name, _, make in bucket:
                    yield name, make()

    def _gather(self, weights: Iterable[Tensor]) -> AbstractContextManager[None]:
        if self.stage < 3 or self._gathered:
            return nullcontext()
        import deepspeed

        context: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(list(weights))
        return context

    def evaluated(self) -> AbstractContextManager[None]:
        return nullcontext()

    def keep_best(self) -> None:
        own = [(name, [each], each.detach) for name, each in self.model.state_dict(keep_vars=True).items()]
        self.best = {name: value.cpu().clone() for name, value in self._in_buckets(own)}

    def finish(self) -> None:
        made: dict[int, nn.Parameter] = {}
        own = [(name, [each], partial(_plain, each, made)) for name, each in self.model.named_parameters()]
        for _ in self._in_buckets(own):
            pass
        plain = {
            module: {key: weight if weight is None else made[id(weight)] for key, weight in module._parameters.items()}
            for module in self.model.modules()
        }
        if self.stage == 3:
            _remove_hooks(self.engine.optimizer.parameter_offload)
        self.engine.destroy()
        del self.engine
        for module, weights in plain.items():
            module._parameters = weights
        if self.best:
            self.model.load_state_dict(self.best)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{self.name}/best/{name}": value for name, value in self.best.items()}

    def write(self, folder: Path) -> None:
        own = folder / self.name
        if self.backend.rank == 0 and own.exists():  # what a kill has left
            shutil.rmtree(own)
        dist.barrier()
        try:
            self.engine.save_checkpoint(str(folder), tag=self.name, save_latest=False)
        except RuntimeError as error:
            if not any(writer in str(error) for writer in ("inline_container", "PytorchStreamWriter")):
                raise
            # torch's writer does not quote the system.
            raise OSError(errno.ENOSPC, "not all of it could be written", str(own)) from None
        dist.barrier()

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        if saved.parts is None or not (saved.parts / self.name).is_dir():
            raise UserError(f"the checkpoint after step {saved.step} is not DeepSpeed's; remove its folder")
        with _plain_loads():
            self.engine.load_checkpoint(str(saved.parts), tag=self.name)
        start = f"{self.name}/best/"
        kept = {name: value for name, value in saved.tensors.items() if name.startswith(start)}
        self.best = {name.removeprefix(start): value for name, value in kept.items()}
        self.updates, self.bad = counts["updates"], counts["bad"]

    @property
    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "bad": self.bad}


class _Pass(nn.Module):
    """The engine's forward pass is whatever is computed of the network: it returns the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def check_supported(params: Optimizer, name: str, ema: float | None) -> None:
    """Raises UserError: DeepSpeed is not there, or has no such optimizer or average, in one sentence."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            "training.backend is deepspeed, which is not installed: run `make engines`, or set "
            "training.backend to torch"
        )
    wanted = []
    if params.type != "adamw":
        wanted.append(f"{name}.optimizer.type to adamw")
    if ema:
        wanted.append(f"{name}.ema to null")
    if wanted:
        raise UserError(
            f"training.backend deepspeed has neither Muon nor averaged weights: set {' and '.join(wanted)}, "
            "or training.backend to torch"
        )


def _engine(model: nn.Module, optimizer: Any, config: dict[str, Any], backend: Backend) -> Any:
    if backend.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")  # alone, without a launcher
    import deepspeed  # half a second, and it looks for compilers: only where it is asked for

    deepspeed.utils.logger.setLevel(logging.WARNING)
    # Else it compiles an all-reduce at the first start, and a kill meanwhile blocks every later start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", message=".*(reduce_scatter_tensor|all_gather_into_tensor).*")
    deepspeed.init_distributed("nccl" if backend.device.type == "cuda" else "gloo")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


@contextmanager
def _plain_loads() -> Iterator[None]:
    """DeepSpeed's loads, which ask for any pickle, give tensors, containers and its three records alone."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def member(kind: Any, name: str) -> Any:
        """A stage as Python before 3.11.4 pickles it: getattr of the enumeration, and only that."""
        if kind is not ZeroStageEnum:
            raise pickle.UnpicklingError(f"getattr of {kind!r} is not allowed")
        return ZeroStageEnum[name]

    known = [LossScaler, ZeroStageEnum, fragment_address, (member, "builtins.getattr")]
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals(known):
            yield
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def _remove_hooks(offload: Any) -> None:
    for weight in offload.module.parameters():
        weight.ds_active_sub_modules.clear()
    for hook in (*offload.forward_hooks, *offload.backward_hooks):
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []


def _plain(weight: nn.Parameter, made: dict[int, nn.Parameter]) -> nn.Parameter:
    """A copy without DeepSpeed's attributes; tied weights stay one."""
    if id(weight) not in made:
        made[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    return made[id(weight)]
