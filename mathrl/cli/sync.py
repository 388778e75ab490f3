"""`mathrl sync`: upload to MLflow what it missed."""

from mathrl.cli.output import AsJson, print_document
from mathrl.tracking import mirror


def sync(as_json: AsJson = False) -> None:
    """Upload to MLflow the metrics and files that could not be uploaded during the runs."""
    complete = mirror.sync()
    if as_json:
        print_document({"complete": complete})
    else:
        print(f"{complete} runs are complete in MLflow")
