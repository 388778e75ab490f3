"""Everything: curate, sft, difficulty, mix, rl, evaluate, register."""

from prefect import flow

from flows.form import (
    CurateForm,
    DifficultyForm,
    EvaluateForm,
    HealthForm,
    MixForm,
    ModelForm,
    Preset,
    PromptForm,
    RegisterForm,
    RewardForm,
    RlForm,
    RolloutForm,
    RunForm,
    SftForm,
    TrainingForm,
)
from tasks.stages import run_stages


@flow(
    name="pipeline",
    description="Everything: curate, sft, difficulty, mix, rl, evaluate, register.",
    validate_parameters=True,
)
def pipeline(
    preset: Preset = None,
    run: RunForm = None,
    model: ModelForm = None,
    prompt: PromptForm = None,
    reward: RewardForm = None,
    rollout: RolloutForm = None,
    training: TrainingForm = None,
    health: HealthForm = None,
    curate: CurateForm = None,
    sft: SftForm = None,
    difficulty: DifficultyForm = None,
    mix: MixForm = None,
    rl: RlForm = None,
    evaluate: EvaluateForm = None,
    registry: RegisterForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    controls: bool = False,
    allow_dirty: bool = False,
) -> str:
    """Everything: curate, sft, difficulty, mix, rl, evaluate, register.

    Nothing set: in the checkout, as `dvc repro` would. Anything set: in a worktree under runs/.

    Args:
        preset: A file of params/presets that goes over params/; what is set here goes over it.
        overrides: Any other parameter as section.key=value, such as rl.optimizer.beta2=0.99.
        controls: Also train and evaluate the three controls.
        allow_dirty: Run from the last commit although code or parameters have uncommitted changes.
    """
    sections = {
        "run": run,
        "model": model,
        "prompt": prompt,
        "reward": reward,
        "rollout": rollout,
        "training": training,
        "health": health,
        "curate": curate,
        "sft": sft,
        "difficulty": difficulty,
        "mix": mix,
        "rl": rl,
        "evaluate": evaluate,
        "register": registry,
    }
    return run_stages("pipeline", preset, sections, overrides, controls=controls, allow_dirty=allow_dirty)
