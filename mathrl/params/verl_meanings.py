"""What verl makes of each parameter, and what it cannot do (docs/engines.md shows the table).

Settings of verl are named from its sections: `actor`, `rollout` and `ref` lie in `actor_rollout_ref`.
"""

from collections.abc import Iterator

from mathrl.params.loss import DppoKl, DppoTv, Gspo
from mathrl.params.meaning import MATHRL, UNUSED, Meaning
from mathrl.params.reward_parts import MajorityPart
from mathrl.params.schema import Params
from mathrl.params.training_engine import Verl

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
    Meaning("rl.advantage.whiten", "refused", (False,), "its group advantages are not whitened"),
    Meaning("rl.loss.type", "`actor.policy_loss.loss_mode`: vanilla for clip, gpg for reinforce"),
    Meaning("rl.loss.low", "`actor.clip_ratio_low`"),
    Meaning("rl.loss.high", "`actor.clip_ratio_high`"),
    Meaning("rl.loss.dual", "`actor.clip_ratio_c`; null is 1e9, a bound that nothing reaches"),
    Meaning("rl.loss.cap", "`actor.clip_ratio_c`"),
    Meaning("rl.loss.temperatures", "`actor.tau_pos`, `actor.tau_neg`"),
    Meaning("rl.loss.log_ratio_penalty", "refused", (0,), "its loss has no such term"),
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
    Meaning("rl.kl.estimator", "`actor.kl_loss_type`"),
    Meaning("rl.kl.controller", "refused", (None,), "the coefficient of the KL is fixed"),
    Meaning("rl.loss.entropy_coef", "`actor.entropy_coeff`"),
    Meaning(
        "rl.importance",
        "`algorithm.rollout_correction`; null: old log-probs are still the trainer's, and the mismatch has no weight",
    ),
    Meaning("rl.loss.drop_ratio", "refused", (None,), "it skips no update"),
    Meaning("rl.epochs", "`actor.ppo_epochs`"),
    Meaning("rl.minibatches", "`actor.ppo_mini_batch_size`, in prompts; drawn by response"),
    Meaning("rl.tokens_per_microbatch", "`actor.ppo_max_token_len_per_gpu` with `use_dynamic_bsz`"),
    Meaning("rl.loss.skip_zero_variance", f"{UNUSED}: every group goes through the model, with the same gradient"),
    Meaning("rl.truncated", "refused", ("keep",), "it keeps truncated responses in the loss"),
    Meaning("rl.dynamic_sampling", "refused", (None,), "mathrl gives it the rows of each step"),
    Meaning("rl.asynchronous", "refused", (None,), "mathrl runs its synchronous trainer"),
    Meaning(
        "rl.curriculum.type",
        "mathrl's order, row by row (`data.shuffle` false)",
        ORDERS,
        "its order of problems is fixed before training",
    ),
    Meaning("rl.keep_rollouts.which", "refused", ("none",), "its rollouts are not kept"),
    Meaning("rl.keep_rollouts.share", f"{UNUSED}: no rollouts are kept"),
    Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights"),
    Meaning("rl.gradient_checkpointing", "`model.enable_gradient_checkpointing`"),
    Meaning("rl.min_pass_at_8", MATHRL),
    Meaning("rl.dev.every", "`trainer.test_freq`: verl samples, mathrl grades and counts"),
    Meaning("rl.dev.samples", "`rollout.val_kwargs.n`"),
    Meaning("rl.dev.temperature", "`rollout.val_kwargs.temperature`"),
    Meaning("rl.dev.export", "verl's merger, then mathrl", ("last",), "the weights that it ends with are exported"),
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
    aggregation = ONE_SIZE.get(rl.loss.type, rl.loss.aggregation)
    if rl.loss.aggregation != aggregation:
        yield f"rl.loss.aggregation={aggregation} (its {rl.loss.type} averages so)"
    if isinstance(rl.loss, Gspo) and rl.loss.dual is not None:
        yield "rl.loss.dual=null (its gspo has no second bound)"
    if isinstance(rl.loss, DppoTv | DppoKl) and rl.loss.cap is None:
        yield "rl.loss.cap=20 (its DPPO bounds the ratio)"
    if isinstance(rl.engine, Verl) and rl.engine.nodes > 1 and rl.engine.ray_address is None:
        yield "rl.engine.ray_address=auto (the Ray that it starts itself has one machine)"
    parts = [*params.reward.parts, *(part for route in params.reward.routes.values() for part in route)]
    if any(isinstance(part, MajorityPart) for part in parts):
        yield "reward.parts without type majority (its reward sees one response at a time)"
