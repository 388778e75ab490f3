"""Compare base, SFT and RL models on held-out problems."""

from prefect import flow

from flows.form import EvaluateForm, ModelForm, Preset, PromptForm, RewardForm, RlForm, RolloutForm, RunForm, SftForm
from tasks.stages import run_stages


@flow(name="evaluate", description="Compare base, SFT and RL models on held-out problems.", validate_parameters=True)
def evaluate(
    preset: Preset = None,
    run: RunForm = None,
    model: ModelForm = None,
    prompt: PromptForm = None,
    reward: RewardForm = None,
    rollout: RolloutForm = None,
    sft: SftForm = None,
    rl: RlForm = None,
    evaluate: EvaluateForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Compare base, SFT and RL models on held-out problems.

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
        "sft": sft,
        "rl": rl,
        "evaluate": evaluate,
    }
    return run_stages("evaluate", preset, sections, overrides, allow_dirty=allow_dirty)
