"""DeepSpeed's configuration, made from the parameters and the kind of device alone."""

from typing import Any

from mathrl.core.gpus import Hardware
from mathrl.models.shapes import BUCKET, LIVE
from mathrl.params.optimizer import Optimizer
from mathrl.params.training import DeepSpeed


def deepspeed_config(settings: DeepSpeed, optimizer: Optimizer, *, half: bool, hardware: Hardware) -> dict[str, Any]:
    """The dictionary for `deepspeed.initialize`; `half`: the model's weights are bfloat16.

    Communication overlaps the backward pass on a GPU, except at stage 1, where DeepSpeed 0.19.8 refuses that
    without its own gradient accumulation (`DeepSpeedEngine._do_sanity_check`).
    """
    zero: dict[str, Any] = {
        "stage": settings.stage,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "overlap_comm": hardware.is_gpu and settings.stage > 1,
    }
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": hardware.is_gpu}
    if settings.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": hardware.is_gpu}
    if settings.stage == 3:
        del zero["allgather_bucket_size"]
        zero["stage3_prefetch_bucket_size"] = BUCKET
        # DeepSpeed's own billion would leave a smaller model whole from the first pass on.
        zero["stage3_max_live_parameters"] = zero["stage3_max_reuse_distance"] = LIVE
    return {
        "train_micro_batch_size_per_gpu": 1,  # micro-batches are the trainer's own, by tokens
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # an update ends when step is called
        "gradient_clipping": optimizer.clip_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": half, "check_grad_overflow": True},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if half else {}),
    }
