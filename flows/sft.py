"""Fine-tune the base model on worked solutions."""

from prefect import flow

from flows.form import CurateForm, HealthForm, ModelForm, Preset, PromptForm, RunForm, SftForm, TrainingForm
from tasks.stages import run_stages


@flow(name="sft", description="Fine-tune the base model on worked solutions.", validate_parameters=True)
def sft(
    preset: Preset = None,
    run: RunForm = None,
    model: ModelForm = None,
    prompt: PromptForm = None,
    training: TrainingForm = None,
    health: HealthForm = None,
    curate: CurateForm = None,
    sft: SftForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Fine-tune the base model on worked solutions.

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
        "training": training,
        "health": health,
        "curate": curate,
        "sft": sft,
    }
    return run_stages("sft", preset, sections, overrides, allow_dirty=allow_dirty)
