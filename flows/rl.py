"""Train the SFT model with verifiable rewards, on problems chosen by their pass rates."""

from prefect import flow

from flows.form import (
    DifficultyForm,
    HealthForm,
    MixForm,
    ModelForm,
    Preset,
    PromptForm,
    RewardForm,
    RlForm,
    RolloutForm,
    RunForm,
    SftForm,
    TrainingForm,
)
from tasks.stages import run_stages


@flow(
    name="rl",
    description="Train the SFT model with verifiable rewards, on problems chosen by their pass rates.",
    validate_parameters=True,
)
def rl(
    preset: Preset = None,
    run: RunForm = None,
    model: ModelForm = None,
    prompt: PromptForm = None,
    reward: RewardForm = None,
    rollout: RolloutForm = None,
    training: TrainingForm = None,
    health: HealthForm = None,
    sft: SftForm = None,
    difficulty: DifficultyForm = None,
    mix: MixForm = None,
    rl: RlForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Train the SFT model with verifiable rewards, on problems chosen by their pass rates.

    Nothing set: in the checkout, as `dvc repro` would. Anything set: in a worktree under runs/.

    Args:
        preset: A file of params/presets that goes over params/; what is set here goes over it.
        overrides: Any other parameter as section.key=value, such as rl.optimizer.beta2=0.99.
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
        "sft": sft,
        "difficulty": difficulty,
        "mix": mix,
        "rl": rl,
    }
    return run_stages("rl", preset, sections, overrides, allow_dirty=allow_dirty)
