"""What tests of several rooms share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow file with its tables and no experiment, to be copied: making one takes seconds."""
    import mlflow

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{file}")
    return file
