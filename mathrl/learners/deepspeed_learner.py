"""The DeepSpeed backend: ZeRO divides optimizer states, gradients and weights among the ranks.

The optimizer is torch's own AdamW in its fused form, on the CPU too where it is offloaded: nothing is
compiled. DeepSpeed averages gradients over the ranks, so a loss is multiplied by their number first: the
gradient is that of the sum, as with the torch backend. In bfloat16 (model.precision) the model has that
type, and ZeRO keeps float32 weights beside it for the optimizer.
"""

import errno
import importlib.util
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mathrl.core.errors import UserError
from mathrl.core.out_of_memory import memory_part
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_internals import (
    element_count,
    make_engine,
    remove_hooks,
    safe_loads,
    without_hooks,
    without_trace,
)
from mathrl.learners.distributed import Ranks
from mathrl.learners.micro_batches import Figures, filled, own_micro_batches, smallest
from mathrl.learners.optimizer import schedule
from mathrl.learners.torch_learner import check_bad
from mathrl.models.lora import weight_parts
from mathrl.models.scores import prepare
from mathrl.models.weights import with_head
from mathrl.params.train import Optimizer

P = ParamSpec("P")
Part = tuple[str, list[Tensor], Callable[[], Tensor]]  # see weight_parts
BUCKET = 50_000_000  # elements sent at a time; DeepSpeed's own half a billion is 2 GB of buffer
LIVE = 4 * BUCKET  # gathered elements that a pass of ZeRO 3 may keep beside the layer that it is in


class DeepSpeedLearner:
    """See `mathrl.learners.learner.Learner`."""

    def __init__(
        self,
        model: Any,
        params: Optimizer,
        lr: float,
        updates: int,
        ranks: Ranks,
        *,
        name: str,
        ema: float | None = None,
    ) -> None:
        check_supported(params, name, ema)
        self.model, self.params, self.lr, self.planned = model, params, lr, updates
        self.name, self.ranks, self.stage = name, ranks, ranks.training.deepspeed.stage
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
            self.engine = make_engine(model, optimizer, self._config(), ranks)
        self.updates, self.bad, self.norm, self.factor = 0, 0, 0.0, 0.0
        self.best: dict[str, Tensor] = {}
        self._gathered = False

    def _config(self) -> dict[str, Any]:
        settings = self.ranks.training.deepspeed
        zero: dict[str, Any] = {
            "stage": settings.stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "overlap_comm": self.ranks.device.type == "cuda",
        }
        if settings.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": self.ranks.device.type == "cuda"}
        if settings.offload_parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": self.ranks.device.type == "cuda"}
        if settings.stage == 3:
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

    def micro_batches(
        self, sizes: Sequence[int], tokens: int, chosen: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], float]]:
        return self.ranks.evened(own_micro_batches(sizes, tokens, self.ranks, chosen), smallest(sizes))

    def forward(
        self, loss_of: Callable[P, tuple[Tensor, Figures]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Tensor, Figures]:
        figures: dict[str, Tensor] = {}

        def compute() -> Tensor:
            loss, values = loss_of(*args, **kwargs)
            figures.update(values)
            return loss

        return self.engine(compute), figures

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.ranks.world, scale_wrt_gas=False)

    def update(self, loss: float) -> None:
        factor = schedule(self.params, self.updates, self.planned)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.lr * factor
        if math.isfinite(loss):
            with memory_part("optimizer states", self.advice):  # allocated at the first step
                self.engine.step()  # which skips itself if the gradient is non-finite
        else:
            self.drop()
        self.norm, self.factor = float(self.engine.get_global_grad_norm()), factor
        if not (math.isfinite(self.norm) and math.isfinite(loss)):
            self.factor, self.bad = 0.0, self.bad + 1
            check_bad(self.bad, self.ranks.training.most_bad_updates, self.name)
        self.updates += 1

    def drop(self) -> None:
        # DeepSpeed only discards its gradient buffers on overflow, so feed it a NaN gradient.
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.ranks.device)
        self.backward(self.engine(lambda: self.model(input_ids=ids, use_cache=False).logits.sum() * math.nan))
        self.engine.step()

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self.stage < 3 or self._gathered:
            yield
            return
        with self._gather(self.model.parameters()), without_hooks(self.engine):
            self._gathered = True
            try:
                yield
            finally:
                self._gathered = False

    def scoring(self) -> AbstractContextManager[None]:
        return nullcontext() if self.stage < 3 or self._gathered else without_trace(self.engine)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return with_head(self._in_buckets(list(weight_parts(self.model))))

    def _in_buckets(self, weights: Sequence[Part]) -> Iterator[tuple[str, Tensor]]:
        """The weights by their names, about BUCKET elements of them gathered at a time."""
        sizes = [sum(element_count(part) for part in parts) for _, parts, _ in weights]
        for bucket in filled(weights, sizes, BUCKET):
            with self._gather(part for _, parts, _ in bucket for part in parts):
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
        state = self.model.state_dict(keep_vars=True)
        parts = [(name, [weight], weight.detach) for name, weight in state.items()]
        self.best = {name: value.cpu().clone() for name, value in self._in_buckets(parts)}

    def finish(self) -> None:
        copies: dict[int, nn.Parameter] = {}
        parts = [(name, [weight], partial(_own_copy, weight, copies)) for name, weight in self.model.named_parameters()]
        for _ in self._in_buckets(parts):
            pass
        parameters = {
            module: {
                key: weight if weight is None else copies[id(weight)] for key, weight in module._parameters.items()
            }
            for module in self.model.modules()
        }
        if self.stage == 3:
            remove_hooks(self.engine)
        self.engine.destroy()
        del self.engine
        for module, weights in parameters.items():
            module._parameters = weights
        if self.best:
            self.model.load_state_dict(self.best)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{self.name}/best/{name}": value for name, value in self.best.items()}

    def write(self, folder: Path) -> None:
        parts = folder / self.name
        if self.ranks.rank == 0 and parts.exists():  # left by a kill
            shutil.rmtree(parts)
        dist.barrier()
        try:
            self.engine.save_checkpoint(str(folder), tag=self.name, save_latest=False)
        except RuntimeError as error:
            if not any(writer in str(error) for writer in ("inline_container", "PytorchStreamWriter")):
                raise
            # torch's writer does not give the system's error.
            raise OSError(errno.ENOSPC, "not all of it could be written", str(parts)) from None
        dist.barrier()

    def load(self, saved: Checkpoint, counts: dict[str, int]) -> None:
        if saved.parts is None or not (saved.parts / self.name).is_dir():
            raise UserError(f"the checkpoint after step {saved.step} is not DeepSpeed's; remove its folder")
        with safe_loads():
            self.engine.load_checkpoint(str(saved.parts), tag=self.name)
        prefix = f"{self.name}/best/"
        self.best = {
            name.removeprefix(prefix): value for name, value in saved.tensors.items() if name.startswith(prefix)
        }
        self.updates, self.bad = counts["updates"], counts["bad"]

    @property
    def counts(self) -> dict[str, int]:
        return {"updates": self.updates, "bad": self.bad}


def check_supported(params: Optimizer, name: str, ema: float | None) -> None:
    """Raises UserError: DeepSpeed is not installed, or does not support the optimizer or the average."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            "training.backend is deepspeed, which is not installed: run `make engines`, or set "
            "training.backend to torch"
        )
    changes = []
    if params.type != "adamw":
        changes.append(f"{name}.optimizer.type to adamw")
    if ema:
        changes.append(f"{name}.ema to null")
    if changes:
        raise UserError(
            f"training.backend deepspeed has neither Muon nor averaged weights: set {' and '.join(changes)}, "
            "or training.backend to torch"
        )


def _own_copy(weight: nn.Parameter, copies: dict[int, nn.Parameter]) -> nn.Parameter:
    """A copy without DeepSpeed's attributes, made once for tied weights."""
    if id(weight) not in copies:
        copies[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    return copies[id(weight)]
