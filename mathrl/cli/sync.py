"""`mathrl sync`: upload to MLflow what it missed."""

from mathrl.tracking import mirror


def sync() -> None:
    """Upload to MLflow the metrics and files that could not be uploaded during the runs."""
    print(f"{mirror.sync()} runs are complete in MLflow")
