"""`mathrl sync`: what MLflow missed."""

from mathrl.tracking import mirror


def sync() -> None:
    """Upload to MLflow what could not be uploaded while the runs were running."""
    print(f"{mirror.sync()} runs are complete in MLflow")
