"""What the RL loop works with: learners, sampler, problem order, and the state that a checkpoint restores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mathrl.algorithms.exploration import adapted_entropy_coef
from mathrl.algorithms.kl import adapted_kl_coef
from mathrl.core.errors import UserError, memory_part
from mathrl.core.types import Problem
from mathrl.learners.checkpoint import Checkpointed, CheckpointFolder, save_checkpoint
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import Learner, make_learner
from mathrl.learners.sharding import FrozenModel, sharded_like
from mathrl.learners.torch_learner import share_gradients
from mathrl.models.dropout import disable_dropout
from mathrl.models.linear import keep_rounded_only
from mathrl.models.load import PROBE
from mathrl.models.lora import add_lora
from mathrl.models.model_shape import shape_of
from mathrl.models.prepared import copy_model
from mathrl.models.sharding import is_sharded, sharded_copy
from mathrl.params.advantage import Distillation, FunctionAdvantage, Process
from mathrl.params.loss import FunctionLoss, Gspo, LossKl, RewardKl
from mathrl.params.rollout import Rollout
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.batch import Batch, own_advantage
from mathrl.trainers.collect import Collector, StepRollouts
from mathrl.trainers.critic import make_critic
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.kept_rollouts import KeptRollouts, open_kept
from mathrl.trainers.policy_update import own_loss
from mathrl.trainers.reference import MovingReference
from mathrl.trainers.rollouts import GroupJudge
from mathrl.trainers.scores import group_logprobs
from mathrl.trainers.training_run import RlResult, TrainingLog, TrainingRun
from mathrl.trainers.weight_sync import WeightSync

# Parameters of a mixture of experts up to which other engines may sample; the published collapses are of 30 billion.
LARGEST_ROUTED = 10e9


@dataclass(frozen=True)
class Helpers:
    """The models and the judge that take part beside the policy.

    `reference` is the model of the KL (a copy of the start if none is given). `judge` is called at each rank
    on its own groups after grading, and may replace their rewards or add rewards of steps. `teacher` is the
    model of on-policy distillation. `critic` is the scorer that PPO's critic starts from (else as `rl.advantage.critic`
    says). `benchmarks` are the problems of rl.eval_benchmarks by their names.
    """

    reference: Any = None
    judge: GroupJudge | None = None
    teacher: Any = None
    critic: Any = None
    benchmarks: Mapping[str, Sequence[Problem]] = field(default_factory=dict)


@dataclass
class RlState:
    """How far a run is; `exported_step` is the step of the weights with the dev accuracy that counts.

    `reference_step` is that of the reference's weights, `entropy` the last step's, and `entropy_coef` what
    rl.loss.entropy_controller has come to.
    """

    step: int
    kl_coef: float
    sampled_tokens: int = 0
    trained_tokens: int = 0
    exported_step: int = 0
    dev_accuracy: float | None = None
    entropy_coef: float = 0.0
    entropy: float | None = None
    reference_step: int = 0


@dataclass(frozen=True)
class RlSetup:
    """What `open_rl` gives the loops; `saved` are the values of the checkpoint that the run resumes from."""

    params: Rl
    run: TrainingRun
    policy: Learner
    critic: Learner | None
    frozen: Sequence[FrozenModel]
    reference: Any
    teacher: Any
    collector: Collector
    sync: WeightSync
    state: RlState
    saved: Mapping[str, Any] | None
    log: TrainingLog
    checkpoints: CheckpointFolder
    kept: KeptRollouts | None
    benchmarks: Mapping[str, Sequence[Problem]]
    moving_reference: MovingReference | None

    def is_due(self, every: int) -> bool:
        """Whether the step that is done is one of `every`, or the last."""
        return self.last or bool(every and self.state.step % every == 0)

    @property
    def last(self) -> bool:
        """Whether the run's last step is done."""
        return self.state.step == self.params.steps

    @property
    def checkpoint_due(self) -> bool:
        return self.last or self.state.step % self.params.checkpoint_every == 0

    @property
    def learners(self) -> list[Learner]:
        return [self.policy] if self.critic is None else [self.policy, self.critic]

    @contextmanager
    def while_scoring(self) -> Iterator[None]:
        """Context in which all models run without a gradient (see `Learner.while_scoring`)."""
        with ExitStack() as contexts:
            for learner in self.learners:
                contexts.enter_context(learner.while_scoring())
            for model in self.frozen:
                contexts.enter_context(model.while_scoring())
            yield

    def step_params(self) -> Rl:
        """The settings of the next step, which the reward and the state follow: schedules, and controllers' values."""
        params, state = self.params.at_step(self.state.step), self.state
        if params.schedules is not None:
            self.collector.reward.set_weights(params.schedules.weights_at(state.step))
            if params.schedules.kl_coef is not None:
                state.kl_coef = params.kl_coef
        controller = params.loss.entropy_controller
        if controller is None:
            return params
        applied = state.entropy is not None and state.entropy <= controller.target
        loss = params.loss.model_copy(update={"entropy_coef": state.entropy_coef if applied else 0.0})
        return params.model_copy(update={"loss": loss})

    def adapt_entropy_coef(self, row: Mapping[str, float], used: float) -> dict[str, float]:
        """The step's coefficient of the entropy bonus, for the metrics; the next step's follows the entropy."""
        controller, state = self.params.loss.entropy_controller, self.state
        if controller is None:
            return {}
        if "entropy" in row:
            state.entropy = row["entropy"]
            bounds = (controller.low, controller.high)
            state.entropy_coef = adapted_entropy_coef(
                state.entropy_coef, state.entropy, controller.target, controller.delta, bounds
            )
        return {"entropy_coef": used}

    def adapt_kl_coef(self, row: Mapping[str, float], responses: int) -> dict[str, float]:
        """The step's coefficient of the KL, for the metrics; the next step's follows the KL (rl.kl.controller)."""
        kl, used = self.params.kl, self.state.kl_coef
        controller = kl.controller if isinstance(kl, LossKl | RewardKl) else None
        if controller is not None and "kl" in row:
            self.state.kl_coef = adapted_kl_coef(
                self.state.kl_coef, row["kl"], responses, controller.target, controller.horizon
            )
        return {"kl_coef": used} if self.params.kl_coef else {}

    def reset_reference(self) -> dict[str, float]:
        """After a step: the policy's weights for the reference where it is time; the metric is the step it is of."""
        if self.moving_reference is None or not isinstance(self.params.kl, LossKl | RewardKl):
            return {}
        step, every = self.state.step, self.params.kl.reset_every
        if every is not None and step % every == 0:
            self.moving_reference.reset()
            self.state.reference_step = step
        return {"reference_step": float(self.state.reference_step)}

    def keep_rollouts(self, rollouts: StepRollouts, batch: Batch, params: Rl) -> None:
        """Keep the step's rollouts, with what the updates did to their tokens, where rl.keep_rollouts asks for it."""
        if self.kept is None:
            return
        with self.while_scoring():
            self.kept.keep(
                self.state.step,
                rollouts.sampled,
                batch,
                lambda groups: group_logprobs(self.policy.model, "policy", groups, params, self.run.ranks),
            )

    def keep_dev_accuracy(self, row: Mapping[str, float]) -> None:
        """Keep the dev accuracy of the row and, with `dev.export: best`, the weights if they are the best so far."""
        state, export, accuracy = self.state, self.params.dev.export, row.get("dev/accuracy")
        if accuracy is None or not (export == "last" or state.dev_accuracy is None or accuracy > state.dev_accuracy):
            return
        state.dev_accuracy, state.exported_step = accuracy, state.step
        if export == "best":
            self.policy.keep_best()

    def checkpoint_writer(self, stream: Any = None) -> Callable[[], None]:
        """A function that writes a checkpoint of the run as it is now, for as long as no weight moves.

        `stream` is the state of an asynchronous run's `RolloutStream`.
        """
        values = {
            "policy": self.policy.counts,
            "critic": self.critic.counts if self.critic is not None else None,
            "order": self.collector.order.state(),
            "state": asdict(self.state),
            "stream": stream,
        }
        rank, parts = self.run.ranks.rank, list[Checkpointed](self.learners)
        if self.moving_reference is not None and self.state.reference_step:
            parts.append(self.moving_reference)
        return partial(save_checkpoint, self.checkpoints, self.state.step, parts, values, rank)

    def finish(self) -> RlResult:
        """The models get their final weights; nothing is sampled any more."""
        self.sync.sleep()
        for learner in self.learners:
            learner.finish()
        state, best = self.state, self.params.dev.export == "best"
        exported_step = state.exported_step if best and state.exported_step else state.step
        return RlResult(state.step, state.sampled_tokens, state.trained_tokens, state.dev_accuracy, exported_step)


def open_rl(
    model: Any,
    sampler: Sampler,
    problems: Sequence[Problem],
    reward: RewardFunction,
    params: Rl,
    run: TrainingRun,
    helpers: Helpers,
) -> RlSetup:
    """Make the learners and restore the last checkpoint of `run.state`, if there is one.

    Raises:
        UserError: no problem whose prompt fits, one without the answer that the reward needs, a missing teacher or
            judge, or a loss or advantage of the user that is none.
    """
    check_helpers(params, helpers)
    if isinstance(params.loss, FunctionLoss):
        own_loss(params.loss).check_loss(params.loss.skip_zero_variance)
    if isinstance(params.advantage, FunctionAdvantage):
        own_advantage(params.advantage).check_advantage()
    ranks = run.ranks
    if params.lora is not None:
        add_lora(model, params.lora, run.seed)
    disable_dropout(model)  # the adapters' too: the sampler has none, and the first update's ratio is 1
    reference = _reference(model, params, helpers.reference, ranks)
    others = [other for other in (reference, helpers.teacher) if other is not None and other is not model]
    for other in others:
        keep_rounded_only(other)
    resets = isinstance(params.kl, LossKl | RewardKl) and params.kl.reset_every is not None
    reference_weights = dict(reference.named_parameters()) if resets else {}
    frozen = [FrozenModel(other, ranks) for other in others]
    updates_per_step = params.epochs * params.minibatches
    critic, policy_steps = None, params.steps
    if params.critic is not None:
        critic = make_critic(params.critic, model, helpers.critic, params.steps * updates_per_step, run.seed, ranks)
        policy_steps -= params.critic.warmup_steps
    policy = make_learner(model, params.optimizer, policy_steps * updates_per_step, ranks, name="rl", ema=params.ema)
    share_gradients([policy] if critic is None else [policy, critic])
    prompts = [sampler.prompt_tokens(problem) for problem in problems]
    usable = [index for index, prompt in enumerate(prompts) if prompt is not None]
    if not usable:
        raise UserError("rl: every prompt is longer than prompt.max_tokens; raise it in params/prompt.yaml")
    if unlabelled := next((problem for problem in problems if not problem.answers), None):
        reward.check_truth(unlabelled)
    order = make_order(params.curriculum, problems, usable, params.steps * params.prompts_per_step, run.seed)
    moving_reference = None
    if resets:
        policy_weights = dict(policy.model.named_parameters())
        moving_reference = MovingReference(policy_weights, reference_weights, sharded=is_sharded(reference))
    state = RlState(0, params.kl_coef, entropy_coef=params.loss.entropy_coef)
    checkpoints = CheckpointFolder(run.state / "checkpoints")
    saved = checkpoints.latest()
    if saved is not None:
        policy.load(saved, saved.values["policy"])
        if critic is not None:
            critic.load(saved, saved.values["critic"])
        order.load(saved.values["order"])
        state = RlState(**saved.values["state"])
        if moving_reference is not None and state.reference_step:
            moving_reference.load(saved)
    resume_after = state.step if saved is not None else None
    log = run.open_log(resume_after)
    kept = open_kept(params.keep_rollouts, problems, sampler.tokenizer, run, resume_after)
    usable_prompts = [prompts[index] or () for index in usable]
    sync = WeightSync(sampler.engine, policy, ranks, usable_prompts, params.temperature, params.max_tokens)
    sync()
    if params.asynchronous is not None and sync.engine is None:
        raise UserError("rl.asynchronous is set, but the sampler has no weights of its own: give it a copy")
    collector = Collector(sampler, problems, prompts, order, reward, helpers.judge, params, ranks)
    if params.gradient_checkpointing:
        for learner in [policy] if critic is None else [policy, critic]:
            learner.model.gradient_checkpointing_enable()
    return RlSetup(
        params=params,
        run=run,
        policy=policy,
        critic=critic,
        frozen=frozen,
        reference=reference,
        teacher=helpers.teacher,
        collector=collector,
        sync=sync,
        state=state,
        saved=saved.values if saved is not None else None,
        log=log,
        checkpoints=checkpoints,
        kept=kept,
        benchmarks=helpers.benchmarks,
        moving_reference=moving_reference,
    )


def _reference(model: Any, params: Rl, reference: Any, ranks: Ranks) -> Any:
    """The model of the KL, or None where nothing needs one."""
    if not params.needs_reference:
        return None
    if reference is not None:
        return reference
    if params.lora:  # adapters are switched off for it, so it needs no copy
        return model
    with memory_part("reference's weights", "set rl.lora, or rl.kl to null"):
        if not is_sharded(model):
            return copy_model(model).requires_grad_(False)
        with sharded_like(model, ranks):
            return sharded_copy(model).requires_grad_(False)


def check_helpers(params: Rl, helpers: Helpers) -> None:
    """Raises UserError: the advantage needs a model that was not given, or a model has no use."""
    distillation = isinstance(params.advantage, Distillation)
    if distillation and helpers.teacher is None:
        raise UserError("rl.advantage is distillation, but there is no teacher; give the run a teacher model")
    if not distillation and helpers.teacher is not None:
        raise UserError(
            f"a teacher is given, but rl.advantage is {params.advantage.type}: set it to distillation, or "
            "leave the teacher out"
        )
    if isinstance(params.advantage, Process) and helpers.judge is None:
        raise UserError("rl.advantage is process, but there are no step rewards; give the run a process reward model")


def check_teacher(folder: Path | str, teacher: Any, start: Path | str, student: Any) -> None:
    """Refuse a teacher's tokenizer under which the student's token ids stand for other texts.

    It may have further tokens. PROBE is a text in which the merges of tokenizers differ.

    Raises:
        UserError: a token of the student has another id at the teacher, or both cut a text into other tokens.
    """
    ids = teacher.get_vocab()
    changed = [(token, number) for token, number in student.get_vocab().items() if ids.get(token) != number]
    cut = teacher.encode(PROBE, add_special_tokens=False) != student.encode(PROBE, add_special_tokens=False)
    if not changed and not cut:
        return
    example = "it cuts texts into other tokens"
    if changed:
        token, number = min(changed, key=lambda pair: pair[1])
        example = f"token {token!r} is {number} to the student and {ids.get(token, 'none')} to the teacher"
    raise UserError(
        f"the teacher {folder} has another tokenizer than {start} ({example}), and on-policy distillation compares the "
        "probabilities of token ids: take a teacher of the same family, or learn from its samples (recipe distillation)"
    )


def check_experts(config: Any, rl: Rl, rollout: Rollout) -> None:
    """Refuse a large mixture of experts whose tokens the sampler would route to other experts than the trainer.

    The ratios of tokens then vary by the routing. GRPO on Qwen3-30B-A3B did not converge without replaying the
    routes (GSPO, arXiv:2507.18071, section 5.3; R3, arXiv:2510.11370, which replays the sampler's). mathrl does not
    replay them. The torch engine samples by the trainer's own layers; GSPO's ratio is of whole responses.

    Raises:
        UserError: it has more than LARGEST_ROUTED parameters, another engine samples, and the loss is not GSPO's.
    """
    if rollout.engine == "torch" or isinstance(rl.loss, Gspo):
        return
    shape = shape_of(config)
    if shape.experts and shape.parameters > LARGEST_ROUTED:
        raise UserError(
            f"the model is a mixture of experts of {shape.parameters / 1e9:.3g} billion parameters, and "
            f"rollout.engine {rollout.engine} routes tokens to other experts than the trainer: without router replay, "
            "which mathrl does not have, GRPO collapsed on Qwen3-30B-A3B (arXiv:2507.18071, section 5.3; "
            "arXiv:2510.11370); set rl.loss to gspo as in docs/reference/methods.md, or rollout.engine to torch, or "
            "take a dense model (model.base)"
        )
