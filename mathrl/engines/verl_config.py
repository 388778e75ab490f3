"""The parameters of a run as verl's configuration, made by one function; docs/reference/engines.md has the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.params import Params
from mathrl.params.advantage import Grpo
from mathrl.params.loss import (
    ClipCov,
    DppoKl,
    DppoTv,
    FunctionLoss,
    Gspo,
    KlCov,
    Loss,
    LossKl,
    Masked,
    PpoClip,
    ReinforceLoss,
    RewardKl,
    Sapo,
    TeacherLoss,
)
from mathrl.params.train import Rl
from mathrl.params.training import Verl

AGGREGATION = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum-norm",
}
LOSSES = {"clip": "vanilla", "reinforce": "gpg", "gmpo": "geo_mean"}
ESTIMATORS = {"grpo": "grpo", "dr_grpo": "grpo", "rloo": "rloo"}
UNBOUNDED = 1e9
# A row's prompt is the text that mathrl has rendered: verl puts nothing around it.
AS_IT_IS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
REWARD_MODULE, REWARD_FUNCTION, REWARD_MANAGER = "pkg://mathrl.engines.verl_reward", "compute_score", "WithTokens"
MANAGER_MODULE = "pkg://mathrl.engines.verl_reward_manager"
CHECKPOINTS_KEPT = 2
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"


@dataclass(frozen=True)
class VerlFiles:
    """Where verl finds a run's model and rows, and writes its checkpoints; folders that all its machines see.

    Example: VerlFiles(Path("models/sft"), Path("state/rl-3f/rows"), Path("state/rl-3f/checkpoints"))
    """

    model: Path
    rows: Path
    checkpoints: Path

    @property
    def train(self) -> Path:
        return self.rows / "train.parquet"

    @property
    def dev(self) -> Path:
        return self.rows / "dev.parquet"

    @property
    def reward(self) -> Path:
        """What the reward needs in verl's processes."""
        return self.rows / "reward.json"

    @property
    def graded_folder(self) -> Path:
        """Folder into which verl's processes write what they graded."""
        return self.rows / "graded"

    @property
    def metrics(self) -> Path:
        """verl's own metrics, a line per step."""
        return self.rows / "metrics.jsonl"


def verl_of(rl: Rl) -> Verl:
    """The section rl.engine of a run that verl trains."""
    assert isinstance(rl.engine, Verl)
    return rl.engine


def verl_settings(
    params: Params, files: VerlFiles, *, longest_prompt: int, resume: Path | None, attention: str
) -> dict[str, Any]:
    """verl's settings by their dotted names; those that are not in it have a default of verl's.

    `longest_prompt` is in tokens; `resume` is the checkpoint to go on from; `attention` is transformers' name of the
    trainer's attention, unless rl.engine.overrides names another. What verl cannot do has been refused
    (`mathrl.params.engines`), and verl's own loader checks the value before anything starts.

    Raises:
        UserError: responses cannot be shared out evenly, or an override sets what mathrl sets.
    """
    rl, engine = params.rl, verl_of(params.rl)
    settings: dict[str, Any] = {
        **_data(params, files, longest_prompt),
        **_add_prefix("actor_rollout_ref.model", _model(params, files)),
        **_add_prefix("actor_rollout_ref.actor", _actor(params, longest_prompt)),
        **_add_prefix("actor_rollout_ref.rollout", _rollout(params, longest_prompt)),
        "actor_rollout_ref.ref.fsdp_config.dtype": params.model.precision,
        "actor_rollout_ref.nccl_timeout": round(60 * params.training.collective_timeout_minutes),
        **_add_prefix("algorithm", _algorithm(rl)),
        **_reward(files),
        **_add_prefix("trainer", _trainer(params, files, resume)),
    }
    if engine.ray_address is not None:
        settings["+ray_kwargs.ray_init.address"] = engine.ray_address
    else:
        settings["+ray_kwargs.ray_init.include_dashboard"] = False
    named = {override.partition("=")[0].lstrip("+") for override in engine.overrides}
    if ATTENTION not in named:
        settings[f"+{ATTENTION}"] = attention
    _check_shares(params)
    made = {name.lstrip("+") for name in settings}
    for override in engine.overrides:
        name = override.partition("=")[0].lstrip("+")
        if name in made:
            raise UserError(
                f"rl.engine.overrides: {override}: mathrl sets {name} from its own parameters; set the parameter that "
                "docs/reference/engines.md names, and leave the override out"
            )
    return settings


def hydra_overrides(settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> list[str]:
    """The settings as Hydra's overrides, and then the user's `overrides`.

    >>> hydra_overrides({"trainer.nnodes": 1, "data.seed": None, "a.b": ["x", "it's"]}, ["c=2"])
    ['trainer.nnodes=1', 'data.seed=null', "a.b=['x','it\\\\'s']", 'c=2']
    """
    return [*(f"{name}={_hydra_value(value)}" for name, value in settings.items()), *overrides]


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str | Path):
        quoted = str(value).replace("'", "\\'")
        return f"'{quoted}'"
    return repr(value)


def _add_prefix(prefix: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


def _data(params: Params, files: VerlFiles, longest_prompt: int) -> dict[str, Any]:
    return _add_prefix(
        "data",
        {
            "train_files": [str(files.train)],
            "val_files": [str(files.dev)],
            "train_batch_size": params.rl.prompts_per_step,
            "max_prompt_length": longest_prompt,
            "max_response_length": params.rl.max_tokens,
            "shuffle": False,
            "validation_shuffle": False,
            "filter_overlong_prompts": False,
            "dataloader_num_workers": 0,
            "seed": params.run.seed,
        },
    )


def _model(params: Params, files: VerlFiles) -> dict[str, Any]:
    base = params.model.base
    return {
        "path": str(files.model),
        "trust_remote_code": base.type == "pretrained" and base.trust_remote_code,
        "custom_chat_template": AS_IT_IS,
        "enable_gradient_checkpointing": params.rl.gradient_checkpointing,
    }


def _actor(params: Params, longest_prompt: int) -> dict[str, Any]:
    rl, seed = params.rl, params.run.seed
    loss = rl.loss
    return {
        "strategy": "fsdp2",
        **_add_prefix("optim", _optimizer(rl)),
        "fsdp_config.dtype": params.model.precision,
        "fsdp_config.seed": seed,
        "data_loader_seed": seed,
        "ppo_mini_batch_size": rl.prompts_per_step // rl.minibatches,
        "ppo_epochs": rl.epochs,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": max(rl.tokens_per_microbatch, longest_prompt + rl.max_tokens),
        "policy_loss.loss_mode": LOSSES.get(loss.type, loss.type),
        **_bounds(loss),
        "loss_agg_mode": AGGREGATION[loss.aggregation],
        "loss_scale_factor": rl.max_tokens if loss.aggregation == "sequence_sum" else None,
        "entropy_coeff": loss.entropy_coef,
        **_kl_loss(rl),
    }


def _bounds(loss: Loss) -> dict[str, Any]:
    """The bounds of a loss; what verl has beside them keeps its default."""
    if isinstance(loss, Sapo):
        positive, other = loss.temperatures
        return {"tau_pos": positive, "tau_neg": other}
    if isinstance(loss, ReinforceLoss | TeacherLoss | FunctionLoss):
        return {}
    if isinstance(loss, KlCov):
        return {"policy_loss.kl_cov_ratio": loss.share, "policy_loss.ppo_kl_coef": loss.coef}
    bounds = {"clip_ratio_low": loss.low, "clip_ratio_high": loss.high}
    if isinstance(loss, ClipCov):
        covariances = {"clip_cov_lb": loss.covariance_low, "clip_cov_ub": loss.covariance_high}
        return bounds | _add_prefix("policy_loss", {"clip_cov_ratio": loss.share, **covariances})
    if isinstance(loss, PpoClip | Gspo):
        return {**bounds, "clip_ratio_c": loss.dual or UNBOUNDED}
    return {**bounds, "clip_ratio_c": loss.cap} if isinstance(loss, DppoTv | DppoKl) else bounds


def _kl_loss(rl: Rl) -> dict[str, Any]:
    if not isinstance(rl.kl, LossKl) or not rl.kl.coef:
        return {"use_kl_loss": False}
    return {"use_kl_loss": True, "kl_loss_coef": rl.kl.coef, "kl_loss_type": rl.kl.estimator}


def _optimizer(rl: Rl) -> dict[str, Any]:
    optimizer, updates = rl.optimizer, rl.epochs * rl.minibatches
    return {
        "optimizer": "AdamW",
        "optimizer_impl": "torch.optim",
        "lr": optimizer.lr,
        "betas": [optimizer.beta1, optimizer.beta2],
        "weight_decay": optimizer.weight_decay,
        "clip_grad": optimizer.clip_norm or UNBOUNDED,
        "override_optimizer_config": {"eps": optimizer.eps},
        "lr_scheduler_type": optimizer.schedule,
        "lr_warmup_steps": -(-optimizer.warmup_steps // updates),
        "zero_indexed_step": False,
    }


def _rollout(params: Params, longest_prompt: int) -> dict[str, Any]:
    rl, rollout = params.rl, params.rollout
    vllm = rollout.vllm
    return {
        "name": "vllm",
        "n": rl.group_size,
        "temperature": rl.temperature,
        "top_k": -1,
        "top_p": 1.0,
        "seed": params.run.seed,
        "dtype": params.model.precision if vllm.dtype == "auto" else vllm.dtype,
        "tensor_model_parallel_size": vllm.tensor_parallel,
        "gpu_memory_utilization": vllm.memory_share,
        "max_num_seqs": rollout.max_sequences,
        "max_model_len": vllm.max_model_length or longest_prompt + rl.max_tokens,
        "enforce_eager": bool(vllm.eager),
        "calculate_log_probs": True,
        "val_kwargs.n": rl.dev.samples,
        "val_kwargs.temperature": rl.dev.temperature,
        "val_kwargs.do_sample": rl.dev.temperature > 0,
    }


def _algorithm(rl: Rl) -> dict[str, Any]:
    in_reward = isinstance(rl.kl, RewardKl) and bool(rl.kl.coef)
    return {
        "adv_estimator": ESTIMATORS[rl.advantage.type],
        "norm_adv_by_std_in_grpo": isinstance(rl.advantage, Grpo),
        "use_kl_in_reward": in_reward,
        "kl_penalty": "kl",
        "kl_ctrl.kl_coef": rl.kl_coef,
        **_add_prefix("rollout_correction", _correction(rl)),
    }


def _correction(rl: Rl) -> dict[str, Any]:
    """Weights for the mismatch of vLLM and the trainer; a masked token has no loss (rejection sampling)."""
    importance = rl.importance
    if importance is None:
        return {"rollout_is": None, "rollout_rs": None}
    bounds: list[tuple[str, float, float]] = []
    threshold: Any = importance.high
    if isinstance(importance, Masked):
        bounds.append((importance.level, importance.low, importance.high))
        threshold = f"{importance.low}_{importance.high}"
    if (reject := importance.reject) is not None:
        bounds.append((reject.level, reject.low, reject.high))
    values = {
        "rollout_is": importance.level,
        "rollout_is_threshold": threshold,
        "rollout_is_batch_normalize": importance.normalise,
        "rollout_rs": ",".join(REJECTIONS[level] for level, _, _ in bounds) or None,
    }
    if bounds:  # of the sampler's probability over the trainer's
        limits = [f"{1 / high:.10g}_{1 / low if low else UNBOUNDED:.10g}" for _, low, high in bounds]
        values["rollout_rs_threshold"] = ",".join(limits)
    return values


REJECTIONS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}


def _reward(files: VerlFiles) -> dict[str, Any]:
    return {
        "reward.custom_reward_function.path": REWARD_MODULE,
        "reward.custom_reward_function.name": REWARD_FUNCTION,
        "+reward.custom_reward_function.reward_kwargs": {"settings": str(files.reward)},
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": REWARD_MANAGER,
        "reward.reward_manager.module.path": MANAGER_MODULE,
    }


def _trainer(params: Params, files: VerlFiles, resume: Path | None) -> dict[str, Any]:
    rl = params.rl
    return {
        "nnodes": verl_of(rl).nodes,
        "n_gpus_per_node": params.run.processes,
        "total_epochs": 1,
        "total_training_steps": rl.steps,
        "project_name": "mathrl",
        "experiment_name": "rl",
        "logger": ["file"],
        "val_before_train": False,
        "test_freq": rl.dev.every or rl.steps,
        "save_freq": rl.checkpoint_every,
        "default_local_dir": str(files.checkpoints),
        "max_actor_ckpt_to_keep": CHECKPOINTS_KEPT,
        "resume_mode": "disable" if resume is None else "resume_path",
        "resume_from_path": None if resume is None else str(resume),
        "use_v1": True,
        "v1.trainer_mode": "sync",
    }


def _check_shares(params: Params) -> None:
    rl = params.rl
    responses, gpus = rl.prompts_per_step * rl.group_size // rl.minibatches, params.run.processes * verl_of(rl).nodes
    if responses % gpus:
        raise UserError(
            f"rl.engine is verl, which gives every GPU as many responses: prompts_per_step x group_size / minibatches "
            f"= {responses} must be a multiple of run.processes x rl.engine.nodes = {gpus}"
        )
    if gpus % params.rollout.vllm.tensor_parallel:
        raise UserError(
            f"run.processes x rl.engine.nodes = {gpus} must be a multiple of rollout.vllm.tensor_parallel = "
            f"{params.rollout.vllm.tensor_parallel}"
        )
