"""The flow of a stage that has no form of its own: difficulty, mix, register."""

from prefect import flow

from tasks.stages import refuse, run_stages


@flow(name="stage", description="Bring one stage up to date.")
def stage_flow(
    stage: str,
    preset: str | None = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    allow_dirty: bool = False,
) -> str:
    """Bring one stage up to date, with what it depends on."""
    refuse(stage)
    return run_stages(stage, preset, {}, overrides, allow_dirty=allow_dirty)
