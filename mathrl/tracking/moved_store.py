"""A project that was moved or copied: its MLflow file names the folder of artifacts by the path that it had."""

import sqlite3
from contextlib import closing

from mathrl.core.paths import home, tracking_uri

ARTIFACTS = "artifacts"
# MLflow has no call that changes these; where a release of it has other tables, what is missing is left out.
COLUMNS = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


def follow_move() -> None:
    """Have the project's own MLflow file name its own folder of artifacts."""
    file, place = home() / "mlflow.db", (home() / ARTIFACTS).as_uri()
    if tracking_uri() != f"sqlite:///{file}" or not file.is_file():
        return
    with closing(sqlite3.connect(file, timeout=60)) as store, store:
        tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "experiments" not in tables:
            return
        named = (
            "SELECT artifact_location FROM experiments WHERE name LIKE 'mathrl%' AND artifact_location LIKE 'file://%'"
        )
        for old in {location for (location,) in store.execute(named)} - {place}:
            for table, column in [(name, column) for name in tables & COLUMNS.keys() for column in COLUMNS[name]]:
                store.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (place, len(old) + 1, old, len(old) + 1, f"{old}/"),
                )
