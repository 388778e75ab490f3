"""Mathematical pages out of a corpus of texts: classifier, top share, promoted domains, next round."""

from prefect import flow

from flows.form import PagesForm, Preset, RunForm
from tasks.stages import run_beside


@flow(
    name="pages",
    description="Mathematical pages out of a corpus: classifier, top share, promoted domains, next round.",
    validate_parameters=True,
)
def pages(
    preset: Preset = None,
    run: RunForm = None,
    pages: PagesForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Mathematical pages out of a corpus of texts: classifier, top share, promoted domains, next round.

    Nothing set: in the checkout, as `dvc repro pipelines/pages/dvc.yaml:pages` would. Anything set: in a worktree
    under runs/.

    Args:
        preset: A file of params/presets that goes over params/; what is set here goes over it.
        overrides: Any other parameter as section.key=value, such as pages.top_share=0.05.
        allow_dirty: Run from the last commit although code or parameters have uncommitted changes.
    """
    return run_beside("pages", preset, {"run": run, "pages": pages}, overrides, allow_dirty=allow_dirty)
