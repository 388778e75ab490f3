"""A new local store that several processes open at once."""

import os
import subprocess
import sys
from pathlib import Path

OPEN = "from mathrl.tracking.client import connect; print(connect()[1])"


def test_the_first_clients_of_a_new_store_do_not_trip_one_another(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    env = given | {"MATHRL_HOME": str(tmp_path / "home")}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [client.communicate(timeout=100) for client in clients]
    assert [out.strip() for out, _ in said] == [b"1"] * 3, b"\n".join(err for _, err in said).decode()
    assert (tmp_path / "home" / "mlflow.db").is_file()
