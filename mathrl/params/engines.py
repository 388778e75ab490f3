"""What another training engine makes of each parameter, as a table; what it cannot do is refused by it.

docs/reference/engines.md shows the tables; a test compares them with the sections, so that no parameter is
missing in one. Settings of verl are named from its sections: `actor`, `rollout` and `ref` lie in `actor_rollout_ref`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from mathrl.params.loss import Cispo, DppoKl, DppoTv, Gspo
from mathrl.params.reward_parts import MajorityPart
from mathrl.params.schema import Params
from mathrl.params.training import MATHRL, UNUSED, Meaning, Trl, Verl

NO_FLOAT16, ITS_SCALE = ("bfloat16", "float32"), "mathrl does not give it the scaled loss of float16"


def _adamw_meanings(stage: str) -> tuple[Meaning, ...]:
    optimizer = f"{stage}.optimizer"
    no_muon = "mathrl gives it torch's AdamW"
    return (
        Meaning(f"{optimizer}.type", "`optim` adamw_torch", ("adamw",), no_muon),
        Meaning(f"{optimizer}.lr", "`learning_rate`"),
        Meaning(f"{optimizer}.beta1", "`adam_beta1`"),
        Meaning(f"{optimizer}.beta2", "`adam_beta2`"),
        Meaning(f"{optimizer}.eps", "`adam_epsilon`"),
        Meaning(f"{optimizer}.weight_decay", "`weight_decay`, which TRL leaves off biases and norms"),
        Meaning(f"{optimizer}.clip_norm", "`max_grad_norm`; null is 0"),
        Meaning(f"{optimizer}.warmup_steps", "mathrl's schedule, as the trainer's scheduler"),
        Meaning(f"{optimizer}.schedule", "mathrl's schedule, as the trainer's scheduler"),
    )


# TRL's names of a figure, and mathrl's.
TRL_METRICS = {
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
}
_MACHINE = (
    Meaning("run.seed", "`seed`, `data_seed`"),
    Meaning("run.device", "`use_cpu`"),
    Meaning("run.processes", "ranks of torchrun, DDP; `ddp_backend`, `ddp_find_unused_parameters` false"),
    Meaning("model.precision", "`bf16`: autocast, with float32 weights on a GPU too", NO_FLOAT16, ITS_SCALE),
)
_TRAINING = (
    Meaning("training.backend", "DDP of accelerate", ("torch",), "mathrl runs TRL without DeepSpeed and FSDP"),
    Meaning("training.most_bad_updates", f"{UNUSED}: the first non-finite loss or gradient stops the run"),
    Meaning("training.checkpoint_minutes", MATHRL),
    Meaning("training.collective_timeout_minutes", MATHRL),
)
_NO_RETRY = Meaning("training.on_out_of_memory", "refused", ("stop",), "it cannot retry a micro-batch")
# What neither trainer does, or both leave to mathrl.
NEITHER = (
    Meaning("rl.advantage.whiten", "refused", (False,), "its group advantages are not whitened"),
    Meaning("rl.loss.log_ratio_penalty", "refused", (0,), "its loss has no such term"),
    Meaning("rl.loss.drop_ratio", "refused", (None,), "it skips no update"),
    Meaning("rl.loss.skip_zero_variance", f"{UNUSED}: every group goes through the model, with the same gradient"),
    Meaning("rl.kl.controller", "refused", (None,), "its coefficient of the KL is fixed"),
    Meaning("rl.kl.reset_every", "refused", (None,), "its reference stays"),
    Meaning("rl.imitation", "refused", (None,), "it learns from its samples alone"),
    Meaning("rl.filters", "refused", ((),), "it trains on every response"),
    Meaning("rl.keep_rollouts.which", "refused", ("none",), "its rollouts are not kept"),
    Meaning("rl.keep_rollouts.share", f"{UNUSED}: no rollouts are kept"),
    Meaning("rl.schedules", "refused", (None,), "its settings stay as they are"),
    Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights"),
    Meaning("rl.min_pass_at_8", MATHRL),
    Meaning("reward.judge.continuations", "refused", (0,), "it has no rewards of steps"),
    Meaning("rollout.tool.kind", "refused", ("none",), "its responses call no tool"),
    _NO_RETRY,
)
# rl.engine trl: TRL 1.16's GRPOTrainer.
TRL_RL = (
    Meaning("rl.steps", "`max_steps`: steps x epochs x minibatches, since TRL counts optimizer steps"),
    Meaning("rl.prompts_per_step", "a generation batch has prompts_per_step x group_size responses"),
    Meaning("rl.group_size", "`num_generations`"),
    *_adamw_meanings("rl"),
    Meaning("rl.lora", "mathrl's adapters in the model that TRL trains"),
    Meaning("rl.lora.frozen", "refused", ("whole",), "mathrl gives it whole weights"),
    Meaning("rl.temperature", "`temperature`"),
    Meaning("rl.max_tokens", "`max_completion_length`"),
    Meaning(
        "rl.advantage.type",
        "`scale_rewards`: group for grpo, none for dr_grpo",
        ("grpo", "dr_grpo"),
        "GRPOTrainer has no other advantage",
    ),
    Meaning("rl.advantage.ddof", "TRL's constant", (1,), "it divides by the unbiased standard deviation"),
    Meaning("rl.advantage.eps", "TRL's constant", (1e-4,), "it adds 0.0001 to the standard deviation"),
    Meaning(
        "rl.loss.type",
        "`loss_type` and `importance_sampling_level`",
        ("clip", "gspo", "cispo", "sapo"),
        "it has no other loss",
    ),
    Meaning("rl.loss.low", "`epsilon`; cispo has no lower bound, so only 1 there"),
    Meaning("rl.loss.high", "`epsilon_high`; for cispo 1 + high"),
    Meaning("rl.loss.dual", "`delta`"),
    Meaning("rl.loss.temperatures", "`sapo_temperature_pos`, `sapo_temperature_neg`"),
    Meaning(
        "rl.loss.aggregation", "`loss_type`: dapo for token_mean, grpo for sequence_mean, dr_grpo for sequence_sum"
    ),
    Meaning("rl.kl.coef", "`beta`"),
    Meaning("rl.kl.type", "TRL's constant", ("loss",), "its KL is a term of the loss, and measured only there"),
    Meaning("rl.kl.estimator", "`use_bias_correction_kl`: for unbiased", ("k3", "unbiased"), "it has no k2"),
    Meaning("rl.loss.off_policy_limit", "`off_policy_mask_threshold`"),
    Meaning(
        "rl.loss.top_entropy", "`top_entropy_quantile`, in each micro-batch and for the entropy bonus too; null is 1"
    ),
    Meaning(
        "rl.loss.entropy_controller",
        "`use_adaptive_entropy`, `entropy_target`, `entropy_coef_delta`, `entropy_coef_min` and `entropy_coef_max`, "
        "by updates instead of steps",
    ),
    Meaning("rl.loss.entropy_coef", "`entropy_coef`, a mean over the tokens of each micro-batch"),
    Meaning("rl.importance", f"{UNUSED} with `when: other_engine`: the trained model samples"),
    Meaning("rl.epochs", "`num_iterations`"),
    Meaning("rl.minibatches", "`steps_per_generation`: that many times `gradient_accumulation_steps`"),
    Meaning("rl.tokens_per_microbatch", "`per_device_train_batch_size`: the responses of full length that fit"),
    Meaning("rl.truncated", "`mask_truncated_completions`"),
    Meaning("rl.dynamic_sampling", "refused", (None,), "it samples once per step"),
    Meaning("rl.asynchronous", "refused", (None,), "it samples after the update"),
    Meaning(
        "rl.curriculum.type",
        "mathrl's order, row by row (`shuffle_dataset` false)",
        ("shuffled", "as_given", "easy_to_hard"),
        "its order of problems is fixed before training",
    ),
    Meaning("rl.gradient_checkpointing", "`gradient_checkpointing`"),
    Meaning("rl.dev.every", MATHRL),
    Meaning("rl.dev.samples", MATHRL),
    Meaning("rl.dev.temperature", MATHRL),
    Meaning("rl.dev.export", MATHRL, ("last",), "the weights that it ends with are exported"),
    Meaning("rl.eval_benchmarks", "refused", ((),), "it evaluates dev alone"),
    Meaning("rl.checkpoint_every", "TRL's own checkpoints, at the steps that mathrl names"),
    *_MACHINE,
    Meaning(
        "rollout.engine", "the trained model samples, by `generate`", ("torch", "auto"), "mathrl runs TRL without vLLM"
    ),
    Meaning("rollout.max_sequences", "bounds the dev evaluation only: TRL samples the responses of a step at once"),
    *_TRAINING,
    *NEITHER,
)
# sft.engine trl: TRL 1.16's SFTTrainer.
TRL_SFT = (
    Meaning("sft.steps", "`max_steps`"),
    Meaning(
        "sft.tokens_per_step",
        "mathrl's batches, as rows of the data set: `per_device_train_batch_size` 1, and the loss divided by the "
        "learned tokens of the global batch",
    ),
    Meaning("sft.terse_share", MATHRL),
    Meaning("sft.call_format", "mathrl's labels: -100 on the outputs of tools"),
    *_adamw_meanings("sft"),
    Meaning("sft.lora", "mathrl's adapters in the model that TRL trains"),
    Meaning("sft.lora.frozen", "refused", ("whole",), "mathrl gives it whole weights"),
    Meaning("sft.dropout", "mathrl switches it off in the model that TRL trains"),
    Meaning("sft.gradient_checkpointing", "`gradient_checkpointing`"),
    Meaning("sft.tokens_per_microbatch", "`gradient_accumulation_steps`: as many padded micro-batches as it asks for"),
    Meaning("sft.eval_every", MATHRL),
    Meaning("sft.checkpoint_every", "TRL's own checkpoints, at the steps that mathrl names"),
    *_MACHINE,
    *_TRAINING,
    _NO_RETRY,
)


def trl_combinations(params: Params) -> Iterator[str]:
    """What to write instead of settings that TRL cannot do together."""
    rl = params.rl
    if rl.importance is not None and rl.importance.when == "always":
        yield "rl.importance=null (the trained model samples, and it corrects no mismatch of log-probs)"
    if isinstance(rl.loss, Cispo) and rl.loss.low != 1:
        yield "rl.loss.low=1 (its cispo has no lower bound)"
    fixed: Mapping[str, str] = {"cispo": "token_mean", "gspo": "sequence_mean", "sapo": "sequence_mean"}
    if rl.loss.aggregation != fixed.get(rl.loss.type, rl.loss.aggregation):
        yield f"rl.loss.aggregation={fixed[rl.loss.type]} (its {rl.loss.type} averages so)"


ORDERS = ("shuffled", "as_given", "easy_to_hard")
ONE_SIZE = {"sapo": "sequence_mean", "gmpo": "sequence_mean"}

# verl's names of a figure, and mathrl's. Whatever is not here keeps verl's name under verl/.
VERL_METRICS = {
    "actor/loss": "actor_loss",
    "actor/entropy": "entropy",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "actor/grad_norm": "grad_norm",
    "actor/pg_clipfrac": "clip_fraction",
    "timing_s/step": "time/step",
    "timing_s/gen": "time/rollout",
    "timing_s/update_actor": "time/update",
    "timing_s/testing": "time/eval",
}
# rl.engine verl: the trainer `sync` of verl 0.9.1, with FSDP and vLLM.
VERL_RL = (
    Meaning("rl.engine.nodes", "`trainer.nnodes`"),
    Meaning("rl.engine.ray_address", "`ray_kwargs.ray_init.address`"),
    Meaning("rl.engine.overrides", "after mathrl's own; a setting that mathrl makes is refused"),
    Meaning("rl.steps", "`trainer.total_training_steps`, over rows for one epoch"),
    Meaning("rl.prompts_per_step", "`data.train_batch_size`"),
    Meaning("rl.group_size", "`rollout.n`"),
    Meaning("rl.optimizer.type", "`actor.optim.optimizer` AdamW", ("adamw",), "mathrl gives it AdamW"),
    Meaning("rl.optimizer.lr", "`actor.optim.lr`"),
    Meaning("rl.optimizer.beta1", "`actor.optim.betas`"),
    Meaning("rl.optimizer.beta2", "`actor.optim.betas`"),
    Meaning("rl.optimizer.eps", "`actor.optim.override_optimizer_config.eps`"),
    Meaning("rl.optimizer.weight_decay", "`actor.optim.weight_decay`"),
    Meaning("rl.optimizer.clip_norm", "`actor.optim.clip_grad`; null is 1e9"),
    Meaning(
        "rl.optimizer.warmup_steps",
        "`actor.optim.lr_warmup_steps`, of steps instead of updates; its constant schedule starts at 0",
    ),
    Meaning(
        "rl.optimizer.schedule",
        "`actor.optim.lr_scheduler_type`; its cosine begins after the warm-up",
        ("constant", "cosine"),
        "it has no linear schedule",
    ),
    Meaning("rl.lora", "refused", (None,), "mathrl brings back whole weights alone"),
    Meaning("rl.temperature", "`rollout.temperature`"),
    Meaning("rl.max_tokens", "`data.max_response_length`"),
    Meaning(
        "rl.advantage.type",
        "`algorithm.adv_estimator`: grpo for grpo and dr_grpo, rloo for rloo",
        ("grpo", "dr_grpo", "rloo"),
        "mathrl asks it for no other",
    ),
    Meaning("rl.advantage.ddof", "verl's constant", (1,), "it divides by the unbiased standard deviation"),
    Meaning("rl.advantage.eps", "verl's constant", (1e-6,), "it adds 0.000001 to the standard deviation"),
    Meaning(
        "rl.loss.type",
        "`actor.policy_loss.loss_mode`: vanilla for clip, gpg for reinforce",
        ("clip", "gspo", "cispo", "reinforce", "sapo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov"),
        "a function of mathrl's tensors is none of its",
    ),
    Meaning("rl.loss.low", "`actor.clip_ratio_low`"),
    Meaning("rl.loss.high", "`actor.clip_ratio_high`"),
    Meaning("rl.loss.dual", "`actor.clip_ratio_c`; null is 1e9, a bound that nothing reaches"),
    Meaning("rl.loss.cap", "`actor.clip_ratio_c`"),
    Meaning("rl.loss.temperatures", "`actor.tau_pos`, `actor.tau_neg`"),
    Meaning(
        "rl.loss.aggregation",
        "`actor.loss_agg_mode`: token-mean, seq-mean-token-mean, seq-mean-token-sum-norm with `loss_scale_factor`",
    ),
    Meaning("rl.kl.coef", "`actor.kl_loss_coef` with `use_kl_loss`, or `algorithm.kl_ctrl.kl_coef`"),
    Meaning(
        "rl.kl.type",
        "`actor.use_kl_loss`, or `algorithm.use_kl_in_reward` with `algorithm.kl_penalty` k1",
        ("loss", "reward"),
        "it measures the KL only where it is in the loss or reward",
    ),
    Meaning("rl.kl.estimator", "`actor.kl_loss_type`", ("k3", "k2", "k3+"), "it has no unbiased KL"),
    Meaning("rl.loss.off_policy_limit", "refused", (None,), "it has no mask of responses by their advantage"),
    Meaning("rl.loss.top_entropy", "refused", (None,), "it has no mask of tokens by their entropy"),
    Meaning("rl.loss.entropy_controller", "refused", (None,), "its coefficient of the entropy is fixed"),
    Meaning("rl.loss.share", "`actor.policy_loss.clip_cov_ratio` or `kl_cov_ratio`, in each micro-batch"),
    Meaning("rl.loss.covariance_low", "`actor.policy_loss.clip_cov_lb`"),
    Meaning("rl.loss.covariance_high", "`actor.policy_loss.clip_cov_ub`"),
    Meaning("rl.loss.coef", "`actor.policy_loss.ppo_kl_coef`"),
    Meaning("rl.loss.entropy_coef", "`actor.entropy_coeff`"),
    Meaning(
        "rl.importance",
        "`algorithm.rollout_correction`; null: old log-probs are still the trainer's, and the mismatch has no weight",
    ),
    Meaning("rl.epochs", "`actor.ppo_epochs`"),
    Meaning("rl.minibatches", "`actor.ppo_mini_batch_size`, in prompts; drawn by response"),
    Meaning("rl.tokens_per_microbatch", "`actor.ppo_max_token_len_per_gpu` with `use_dynamic_bsz`"),
    Meaning("rl.truncated", "refused", ("keep",), "it keeps truncated responses in the loss"),
    Meaning("rl.dynamic_sampling", "refused", (None,), "mathrl gives it the rows of each step"),
    Meaning("rl.asynchronous", "refused", (None,), "mathrl runs its synchronous trainer"),
    Meaning(
        "rl.curriculum.type",
        "mathrl's order, row by row (`data.shuffle` false)",
        ORDERS,
        "its order of problems is fixed before training",
    ),
    Meaning("rl.gradient_checkpointing", "`model.enable_gradient_checkpointing`"),
    Meaning("rl.dev.every", "`trainer.test_freq`: verl samples, mathrl grades and counts"),
    Meaning("rl.dev.samples", "`rollout.val_kwargs.n`"),
    Meaning("rl.dev.temperature", "`rollout.val_kwargs.temperature`"),
    Meaning("rl.dev.export", "verl's merger, then mathrl", ("last",), "the weights that it ends with are exported"),
    Meaning("rl.eval_benchmarks", "refused", ((),), "it evaluates dev alone"),
    Meaning("rl.checkpoint_every", "`trainer.save_freq`"),
    Meaning("run.seed", "`data.seed`, `rollout.seed`, `actor.data_loader_seed`, `actor.fsdp_config.seed`"),
    Meaning("run.device", "verl's own GPUs", ("auto", "cuda"), "it trains on GPUs alone"),
    Meaning("run.processes", "`trainer.n_gpus_per_node`"),
    Meaning(
        "model.precision", "`actor.fsdp_config.dtype` over float32 weights, `rollout.dtype`", NO_FLOAT16, ITS_SCALE
    ),
    Meaning("rollout.engine", "`rollout.name` vllm", ("vllm", "auto"), "vLLM in its workers samples"),
    Meaning("rollout.max_sequences", "`rollout.max_num_seqs`"),
    Meaning("rollout.vllm.max_model_length", "`rollout.max_model_len`"),
    Meaning("rollout.vllm.tensor_parallel", "`rollout.tensor_model_parallel_size`"),
    Meaning("rollout.vllm.memory_share", "`actor_rollout_ref.rollout.gpu_memory_utilization`"),
    Meaning("rollout.vllm.sleep", f"{UNUSED}: it always frees its memory during the update"),
    Meaning("rollout.vllm.eager", "`rollout.enforce_eager`; null is false"),
    Meaning("training.backend", "FSDP of verl", ("torch",), "mathrl runs it with FSDP"),
    Meaning("training.most_bad_updates", "it skips a bad update; mathrl counts the steps in a row that have one"),
    Meaning("training.checkpoint_minutes", f"{UNUSED}: it writes a checkpoint every checkpoint_every steps"),
    Meaning("training.collective_timeout_minutes", "`actor_rollout_ref.nccl_timeout`"),
    *NEITHER,
)


def verl_combinations(params: Params) -> Iterator[str]:
    """What to write instead of settings that verl cannot do together."""
    rl = params.rl
    aggregation = ONE_SIZE.get(rl.loss.type, rl.loss.aggregation)
    if rl.loss.aggregation != aggregation:
        yield f"rl.loss.aggregation={aggregation} (its {rl.loss.type} averages so)"
    if isinstance(rl.loss, Gspo) and rl.loss.dual is not None:
        yield "rl.loss.dual=null (its gspo has no second bound)"
    if isinstance(rl.loss, DppoTv | DppoKl) and rl.loss.cap is None:
        yield "rl.loss.cap=20 (its DPPO bounds the ratio)"
    if rl.importance is not None and rl.importance.veto is not None:
        yield "rl.importance.veto=null (it has no veto)"
    if isinstance(rl.engine, Verl) and rl.engine.nodes > 1 and rl.engine.ray_address is None:
        yield "rl.engine.ray_address=auto (the Ray that it starts itself has one machine)"
    parts = [*params.reward.parts, *(part for route in params.reward.routes.values() for part in route)]
    if any(isinstance(part, MajorityPart) for part in parts):
        yield "reward.parts without type majority (its reward sees one response at a time)"


def unsupported_settings(params: Params, stage: str) -> Iterator[str]:
    """What to write instead of each setting that the stage's engine cannot do, with the reason.

    Example: ["rl.ema=null (it keeps no moving average of the weights)"].
    """
    if stage == "sft" and isinstance(params.sft.engine, Trl) and params.sft.steps:
        yield from _refusals(TRL_SFT, params)
    if stage == "rl" and isinstance(params.rl.engine, Trl):
        yield from _refusals(TRL_RL, params)
        yield from trl_combinations(params)
    if stage == "rl" and isinstance(params.rl.engine, Verl):
        yield from _refusals(VERL_RL, params)
        yield from verl_combinations(params)


def engine_problem(params: Params, stage: str) -> str:
    """One sentence with everything that the stage's engine cannot do; empty where it can do all."""
    instead = list(unsupported_settings(params, stage))
    if not instead:
        return ""
    engine = getattr(params, stage).engine.type
    return f"engine {engine} cannot do what is set; set {', '.join(instead)}, or {stage}.engine=mathrl"


def _refusals(table: Sequence[Meaning], params: Params) -> Iterator[str]:
    for meaning in table:
        if has_setting(params, meaning.setting):
            refusal = meaning.refusal(value_of(params, meaning.setting))
            if refusal:
                yield refusal


def has_setting(params: Any, setting: str) -> bool:
    """Whether there is a value at a dotted path: a union's other types, and a section that is null, have none.

    >>> from mathrl.params.train import Rl
    >>> has_setting(Rl(), "advantage.eps"), has_setting(Rl(), "advantage.gamma"), has_setting(Rl(), "kl.coef")
    (True, False, False)
    """
    *above, last = setting.split(".")
    section = params
    for name in above:
        section = getattr(section, name, None)
    return hasattr(section, last)


def value_of(params: Any, setting: str) -> Any:
    """The value at a dotted path.

    >>> from mathrl.params.train import Rl
    >>> value_of(Rl(), "optimizer.beta1")
    0.9
    """
    return reduce(getattr, setting.split("."), params)
