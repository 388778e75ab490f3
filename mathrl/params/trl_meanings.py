"""What TRL makes of each parameter, and what it cannot do (docs/engines.md shows the tables)."""

from collections.abc import Iterator, Mapping

from mathrl.params.loss import Cispo
from mathrl.params.meaning import MATHRL, UNUSED, Meaning
from mathrl.params.schema import Params


def _adamw_meanings(stage: str) -> tuple[Meaning, ...]:
    optimizer = f"{stage}.optimizer"
    no_muon = "its trainer has no Muon"
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
    Meaning("model.precision", "`bf16`: autocast, with float32 weights on a GPU too"),
)
_TRAINING = (
    Meaning("training.backend", "DDP of accelerate", ("torch",), "mathrl runs TRL without DeepSpeed and FSDP"),
    Meaning("training.most_bad_updates", f"{UNUSED}: the first non-finite loss or gradient stops the run"),
    Meaning("training.checkpoint_minutes", MATHRL),
    Meaning("training.collective_timeout_minutes", MATHRL),
    Meaning("training.on_out_of_memory", "refused", ("stop",), "it cannot retry a micro-batch"),
)
# rl.engine trl: TRL 1.16's GRPOTrainer.
TRL_RL = (
    Meaning("rl.steps", "`max_steps`: steps x epochs x minibatches, since TRL counts optimizer steps"),
    Meaning("rl.prompts_per_step", "a generation batch has prompts_per_step x group_size responses"),
    Meaning("rl.group_size", "`num_generations`"),
    *_adamw_meanings("rl"),
    Meaning("rl.lora", "mathrl's adapters in the model that TRL trains"),
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
    Meaning("rl.advantage.whiten", "refused", (False,), "it does not whiten advantages"),
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
    Meaning("rl.loss.log_ratio_penalty", "refused", (0,), "its loss has no such term"),
    Meaning(
        "rl.loss.aggregation", "`loss_type`: dapo for token_mean, grpo for sequence_mean, dr_grpo for sequence_sum"
    ),
    Meaning("rl.kl.coef", "`beta`"),
    Meaning("rl.kl.type", "TRL's constant", ("loss",), "its KL is a term of the loss, and measured only there"),
    Meaning("rl.kl.estimator", "TRL's constant", ("k3",), "its estimator is k3"),
    Meaning("rl.kl.controller", "refused", (None,), "its coefficient of the KL is fixed"),
    Meaning("rl.loss.entropy_coef", "`entropy_coef`, a mean over the tokens of each micro-batch"),
    Meaning("rl.importance", f"{UNUSED} with `when: other_engine`: the trained model samples"),
    Meaning("rl.loss.drop_ratio", "refused", (None,), "it skips no update"),
    Meaning("rl.epochs", "`num_iterations`"),
    Meaning("rl.minibatches", "`steps_per_generation`: that many times `gradient_accumulation_steps`"),
    Meaning("rl.tokens_per_microbatch", "`per_device_train_batch_size`: the responses of full length that fit"),
    Meaning("rl.loss.skip_zero_variance", f"{UNUSED}: every group goes through the model, with the same gradient"),
    Meaning("rl.truncated", "`mask_truncated_completions`"),
    Meaning("rl.dynamic_sampling", "refused", (None,), "it samples once per step"),
    Meaning("rl.asynchronous", "refused", (None,), "it samples after the update"),
    Meaning(
        "rl.curriculum.type",
        "mathrl's order, row by row (`shuffle_dataset` false)",
        ("shuffled", "as_given", "easy_to_hard"),
        "its order of problems is fixed before training",
    ),
    Meaning("rl.keep_rollouts.which", "refused", ("none",), "its rollouts are not kept"),
    Meaning("rl.keep_rollouts.share", f"{UNUSED}: no rollouts are kept"),
    Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights"),
    Meaning("rl.gradient_checkpointing", "`gradient_checkpointing`"),
    Meaning("rl.min_pass_at_8", MATHRL),
    Meaning("rl.dev.every", MATHRL),
    Meaning("rl.dev.samples", MATHRL),
    Meaning("rl.dev.temperature", MATHRL),
    Meaning("rl.dev.export", MATHRL, ("last",), "the weights that it ends with are exported"),
    Meaning("rl.checkpoint_every", "TRL's own checkpoints, at the steps that mathrl names"),
    *_MACHINE,
    Meaning("reward.judge.continuations", "refused", (0,), "it has no rewards of steps"),
    Meaning(
        "rollout.engine", "the trained model samples, by `generate`", ("torch", "auto"), "mathrl runs TRL without vLLM"
    ),
    Meaning("rollout.tool.kind", "refused", ("none",), "its responses call no tool"),
    Meaning("rollout.max_sequences", "bounds the dev evaluation only: TRL samples the responses of a step at once"),
    *_TRAINING,
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
    Meaning("sft.dropout", "mathrl switches it off in the model that TRL trains"),
    Meaning("sft.gradient_checkpointing", "`gradient_checkpointing`"),
    Meaning("sft.tokens_per_microbatch", "`gradient_accumulation_steps`: as many padded micro-batches as it asks for"),
    Meaning("sft.eval_every", MATHRL),
    Meaning("sft.checkpoint_every", "TRL's own checkpoints, at the steps that mathrl names"),
    *_MACHINE,
    *_TRAINING,
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
