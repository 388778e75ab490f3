"""Problems from their sources to disjoint splits: deduplicated, decontaminated, reported."""

from prefect import flow

from flows.form import CurateForm, Preset, RunForm
from tasks.stages import run_stages


@flow(
    name="curate",
    description="Problems from their sources to disjoint splits: deduplicated, decontaminated, reported.",
    validate_parameters=True,
)
def curate(
    preset: Preset = None,
    run: RunForm = None,
    curate: CurateForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Problems from their sources to disjoint splits: deduplicated, decontaminated, reported.

    Nothing set: in the checkout, as `dvc repro` would. Anything set: in a worktree under runs/.

    Args:
        preset: A file of params/presets that goes over params/; what is set here goes over it.
        overrides: Any other parameter as section.key=value, such as rl.optimizer.beta2=0.99.
        allow_dirty: Run from the last commit although code or parameters have uncommitted changes.
    """
    sections = {"run": run, "curate": curate}
    return run_stages("curate", preset, sections, overrides, allow_dirty=allow_dirty)
