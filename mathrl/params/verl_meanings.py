"""What verl makes of each parameter, and what it cannot do (docs/engines.md shows the table).

Settings of verl are named from its sections: `actor`, `rollout` and `ref` lie in `actor_rollout_ref`.
"""

from collections.abc import Iterator

from mathrl.params.meaning import MATHRL, UNUSED, Meaning
from mathrl.params.reward_parts import MajorityPart
from mathrl.params.schema import Params

ORDERS = ("shuffled", "as_given", "easy_to_hard")
ONE_SIZE = {"sapo": "sequence_mean", "geo_mean": "sequence_mean"}

# rl.engine verl: the trainer `sync` of verl 0.9.1, with FSDP and vLLM.
VERL_RL = (
    Meaning("rl.verl.nodes", "`trainer.nnodes`"),
    Meaning("rl.verl.ray_address", "`ray_kwargs.ray_init.address`"),
    Meaning("rl.verl.overrides", "after mathrl's own; a setting that mathrl makes is refused"),
    Meaning("rl.steps", "`trainer.total_training_steps`, over rows for one epoch"),
    Meaning("rl.prompts_per_step", "`data.train_batch_size`"),
    Meaning("rl.group_size", "`rollout.n`"),
    Meaning("rl.lr", "`actor.optim.lr`"),
    Meaning("rl.optimizer.type", "`actor.optim.optimizer` AdamW", ("adamw",), "mathrl gives it AdamW; set rl.lr too"),
    Meaning("rl.optimizer.adamw_scale", f"{UNUSED}: only Muon uses it"),
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
        "rl.advantage",
        "`algorithm.adv_estimator`: grpo for group_std and group_mean, rloo for leave_one_out",
        ("group_std", "group_mean", "leave_one_out"),
        "mathrl asks it for no other",
    ),
    Meaning("rl.std_ddof", "verl's constant", (1,), "it divides by the unbiased standard deviation"),
    Meaning("rl.std_eps", "verl's constant", (1e-6,), "it adds 0.000001 to the standard deviation"),
    Meaning("rl.k", f"{UNUSED}: advantages of sets are refused"),
    Meaning("rl.step_returns", f"{UNUSED}: advantage process is refused"),
    Meaning("rl.part_weights", f"{UNUSED}: advantage part_std is refused"),
    Meaning("rl.whiten", "refused", (False,), "its group advantages are not whitened"),
    Meaning("rl.gamma", f"{UNUSED}: advantages of groups use no discount"),
    Meaning("rl.gae_lambda", f"{UNUSED}: advantages of groups use no critic"),
    Meaning("rl.critic", "refused", (None,), "mathrl runs it without a critic"),
    Meaning("rl.policy_loss", "`actor.policy_loss.loss_mode`: vanilla for clip, gpg for reinforce"),
    Meaning("rl.clip_low", "`actor.clip_ratio_low`"),
    Meaning("rl.clip_high", "`actor.clip_ratio_high`"),
    Meaning("rl.dual_clip", "`actor.clip_ratio_c`; null is 1e9, a bound that nothing reaches"),
    Meaning("rl.sapo_temperatures", "`actor.tau_pos`, `actor.tau_neg`"),
    Meaning("rl.log_ratio_penalty", "refused", (0,), "its loss has no such term"),
    Meaning(
        "rl.aggregation",
        "`actor.loss_agg_mode`: token-mean, seq-mean-token-mean, seq-mean-token-sum-norm with `loss_scale_factor`",
    ),
    Meaning("rl.kl_coef", "`actor.kl_loss_coef` with `use_kl_loss`, or `algorithm.kl_ctrl.kl_coef`"),
    Meaning("rl.kl_probe", "refused", (0,), "it measures the KL only where it is in the loss or reward"),
    Meaning("rl.kl_in", "`actor.use_kl_loss`, or `algorithm.use_kl_in_reward`"),
    Meaning("rl.kl_estimator", "`actor.kl_loss_type`, `algorithm.kl_penalty`"),
    Meaning("rl.kl_controller", "refused", (None,), "the coefficient of the KL is fixed"),
    Meaning("rl.entropy_coef", "`actor.entropy_coeff`"),
    Meaning(
        "rl.importance",
        "`algorithm.rollout_correction`; null: old log-probs are still the trainer's, and the mismatch has no weight",
    ),
    Meaning("rl.drop_ratio", "refused", (None,), "it skips no update"),
    Meaning("rl.epochs", "`actor.ppo_epochs`"),
    Meaning("rl.minibatches", "`actor.ppo_mini_batch_size`, in prompts; drawn by response"),
    Meaning("rl.tokens_per_microbatch", "`actor.ppo_max_token_len_per_gpu` with `use_dynamic_bsz`"),
    Meaning("rl.skip_zero_variance", f"{UNUSED}: every group goes through the model, with the same gradient"),
    Meaning("rl.truncated", "refused", ("keep",), "it keeps truncated responses in the loss"),
    Meaning("rl.dynamic_sampling", "refused", (0,), "mathrl gives it the rows of each step"),
    Meaning("rl.prompts_per_round", f"{UNUSED} without dynamic sampling"),
    Meaning("rl.asynchronous", "refused", (None,), "mathrl runs its synchronous trainer"),
    Meaning(
        "rl.curriculum.order",
        "mathrl's order, row by row (`data.shuffle` false)",
        ORDERS,
        "its order of problems is fixed before training",
    ),
    Meaning("rl.curriculum.floor", f"{UNUSED}: only order pass_rate uses it"),
    Meaning("rl.curriculum.memory", f"{UNUSED}: only order pass_rate uses it"),
    Meaning("rl.curriculum.pools", f"{UNUSED}: order pools is refused"),
    Meaning("rl.curriculum.adaptive", "refused", (None,), "each of its prompts has group_size responses"),
    Meaning("rl.curriculum.sampler", f"{UNUSED}: order user is refused"),
    Meaning("rl.keep_rollouts.which", "refused", ("none",), "its rollouts are not kept"),
    Meaning("rl.keep_rollouts.share", f"{UNUSED}: no rollouts are kept"),
    Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights"),
    Meaning("rl.gradient_checkpointing", "`model.enable_gradient_checkpointing`"),
    Meaning("rl.min_pass_at_8", MATHRL),
    Meaning("rl.eval_every", "`trainer.test_freq`: verl samples, mathrl grades and counts"),
    Meaning("rl.eval_samples", "`rollout.val_kwargs.n`"),
    Meaning("rl.eval_temperature", "`rollout.val_kwargs.temperature`"),
    Meaning("rl.export", "verl's merger, then mathrl", ("last",), "the weights that it ends with are exported"),
    Meaning("rl.checkpoint_every", "`trainer.save_freq`"),
    Meaning("run.seed", "`data.seed`, `rollout.seed`, `actor.data_loader_seed`, `actor.fsdp_config.seed`"),
    Meaning("run.device", "verl's own GPUs", ("auto", "cuda"), "it trains on GPUs alone"),
    Meaning("run.processes", "`trainer.n_gpus_per_node`"),
    Meaning("model.precision", "`actor.fsdp_config.dtype` over float32 weights, `rollout.dtype`"),
    Meaning("reward.judge.continuations", "refused", (0,), "it has no rewards of steps"),
    Meaning("rollout.engine", "`rollout.name` vllm", ("vllm", "auto"), "vLLM in its workers samples"),
    Meaning("rollout.tool.kind", "refused", ("none",), "mathrl's tools are not called in it"),
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
    Meaning("training.on_out_of_memory", "refused", ("stop",), "it cannot retry a micro-batch"),
)


def verl_combinations(params: Params) -> Iterator[str]:
    """What to write instead of settings that verl cannot do together."""
    rl = params.rl
    aggregation = ONE_SIZE.get(rl.policy_loss, rl.aggregation)
    if rl.aggregation != aggregation:
        yield f"rl.aggregation={aggregation} (its {rl.policy_loss} averages so)"
    if rl.policy_loss == "gspo" and rl.dual_clip is not None:
        yield "rl.dual_clip=null (its gspo has no second bound)"
    if rl.dual_clip is None and rl.policy_loss.startswith("dppo"):
        yield "rl.dual_clip=20 (its DPPO bounds the ratio)"
    if rl.verl.nodes > 1 and rl.verl.ray_address is None:
        yield "rl.verl.ray_address=auto (the Ray that it starts itself has one machine)"
    parts = [*params.reward.parts, *(part for route in params.reward.routes.values() for part in route)]
    if any(isinstance(part, MajorityPart) for part in parts):
        yield "reward.parts without type majority (its reward sees one response at a time)"
