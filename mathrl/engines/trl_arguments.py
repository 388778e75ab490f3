"""The parameters of a stage as TRL's arguments, made by one function; docs/reference/engines.md has the table."""

from typing import Any

from mathrl.core.errors import UserError
from mathrl.params import Params
from mathrl.params.advantage import Grpo
from mathrl.params.loss import Cispo, Gspo, Loss, LossKl, PpoClip, Sapo
from mathrl.params.optimizer import Optimizer
from mathrl.params.train import Rl

LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo", "sequence_sum": "dr_grpo"}


def updates_per_step(rl: Rl) -> int:
    """Optimizer steps, which TRL counts, per step of mathrl: a rollout with all its updates."""
    return rl.epochs * rl.minibatches


def grpo_arguments(params: Params, *, world: int, on_cpu: bool, longest: int) -> dict[str, Any]:
    """The arguments of TRL's GRPOConfig, without its folder.

    `longest` bounds a prompt with its response, in tokens. What TRL cannot do has been refused
    (`mathrl.params.engines`); a test gives the value to GRPOConfig, which checks it.

    Raises:
        UserError: the responses of an update cannot be shared out evenly to the ranks.
    """
    rl = params.rl
    share, rest = divmod(rl.prompts_per_step * rl.group_size, rl.minibatches * world)
    if rest:
        raise UserError(
            f"rl.engine is trl, which gives every rank as many responses: prompts_per_step x group_size = "
            f"{rl.prompts_per_step * rl.group_size} must be a multiple of minibatches x ranks = "
            f"{rl.minibatches} x {world}"
        )
    micro = micro_batch_responses(share, rl.tokens_per_microbatch, longest)
    return {
        "max_steps": rl.steps * updates_per_step(rl),
        "num_generations": rl.group_size,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "steps_per_generation": share // micro * rl.minibatches,
        "num_iterations": rl.epochs,
        **_adamw(rl.optimizer),
        "temperature": rl.temperature,
        "max_completion_length": rl.max_tokens,
        "scale_rewards": "group" if isinstance(rl.advantage, Grpo) else "none",
        **_loss(rl.loss),
        "beta": rl.kl_coef,
        "use_bias_correction_kl": isinstance(rl.kl, LossKl) and rl.kl.estimator == "unbiased",
        "off_policy_mask_threshold": rl.loss.off_policy_limit,
        "entropy_coef": rl.loss.entropy_coef,
        **_entropy(rl.loss),
        "mask_truncated_completions": rl.truncated == "mask",
        "gradient_checkpointing": rl.gradient_checkpointing,
        **trainer_arguments(params, world, on_cpu=on_cpu),
        "shuffle_dataset": False,
        "logging_steps": updates_per_step(rl),
    }


def sft_arguments(params: Params, *, world: int, on_cpu: bool, accumulation: int) -> dict[str, Any]:
    """The arguments of TRL's SFTConfig, without its folder; `accumulation` micro-batches per rank make a step.

    The rows of the data set are micro-batches of demonstrations (`mathrl.engines.trl_sft`), in their order and
    whole, so that TRL neither tokenizes nor truncates nor shuffles.
    """
    sft = params.sft
    return {
        "max_steps": sft.steps,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": accumulation,
        **_adamw(sft.optimizer),
        "gradient_checkpointing": sft.gradient_checkpointing,
        **trainer_arguments(params, world, on_cpu=on_cpu),
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "remove_unused_columns": False,
        "max_length": None,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
    }


def _adamw(optimizer: Optimizer) -> dict[str, Any]:
    return {
        "learning_rate": optimizer.lr,
        "optim": "adamw_torch",
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm or 0.0,
    }


def micro_batch_responses(share: int, tokens: int, longest: int) -> int:
    """The largest divisor of a rank's `share` of responses that fits into `tokens` tokens, one at least.

    >>> micro_batch_responses(12, tokens=500, longest=100), micro_batch_responses(7, 500, 100)
    (4, 1)
    """
    return max(size for size in range(1, share + 1) if share % size == 0 and (size == 1 or size * longest <= tokens))


def _loss(loss: Loss) -> dict[str, Any]:
    """TRL names the average by `loss_type`, GSPO by the level of its ratio; its CISPO bounds the ratio itself."""
    average = {"loss_type": LOSS_TYPES[loss.aggregation], "importance_sampling_level": "token"}
    match loss:
        case PpoClip() | Gspo():
            level = "sequence" if isinstance(loss, Gspo) else "token"
            bounds = {"epsilon": loss.low, "epsilon_high": loss.high, "delta": loss.dual}
            return {**average, "importance_sampling_level": level, **bounds}
        case Cispo():
            return {**average, "loss_type": loss.type, "epsilon": loss.low, "epsilon_high": 1 + loss.high}
        case Sapo():
            positive, other = loss.temperatures
            own = {"sapo_temperature_pos": positive, "sapo_temperature_neg": other}
            return {**average, "loss_type": loss.type, **own}
    raise AssertionError(f"TRL has no loss {loss.type}")  # has been refused


def _entropy(loss: Loss) -> dict[str, Any]:
    control = loss.entropy_controller
    made: dict[str, Any] = {"use_adaptive_entropy": control is not None}
    if control is not None:
        made |= {"entropy_target": control.target, "entropy_coef_delta": control.delta}
        made |= {"entropy_coef_min": control.low, "entropy_coef_max": control.high}
    return made | {"top_entropy_quantile": 1.0 if loss.top_entropy is None else loss.top_entropy}


def trainer_arguments(params: Params, world: int, *, on_cpu: bool) -> dict[str, Any]:
    """What every trainer of TRL gets: the machine, the seeds, and nothing written or reported but by mathrl."""
    return {
        "use_cpu": on_cpu,
        "bf16": params.model.precision == "bfloat16",
        "ddp_backend": None if world == 1 else "gloo" if on_cpu else "nccl",
        "ddp_find_unused_parameters": False,
        "seed": params.run.seed,
        "data_seed": params.run.seed,
        "save_strategy": "no",
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "error",
        "logging_nan_inf_filter": False,
    }
