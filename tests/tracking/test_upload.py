"""Names and values as MLflow gets them."""

from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.tracking.client import check_answers, shown
from mathrl.tracking.upload import flatten


def test_nested_parameters_become_dotted_names_with_json_values() -> None:
    values = {"rl": {"lr": 5e-4, "optimizer": {"type": "muon"}, "ks": [1, 2], "options": {}, "ema": None}}
    assert flatten(values) == {
        "rl.lr": "0.0005", "rl.optimizer.type": "muon", "rl.ks": "[1, 2]", "rl.options": "{}",
        "rl.ema": "null",
    }  # fmt: skip


def test_a_password_is_never_shown() -> None:
    assert shown("https://me:secret@host:5000/x") == "https://host:5000/x"
    with pytest.raises(UserError) as caught:
        check_answers("http://me:secret@127.0.0.1:9")
    assert "secret" not in str(caught.value) and "127.0.0.1:9" in str(caught.value)
    assert "make ui" in str(caught.value)


def test_a_local_file_always_answers(tmp_path: Path) -> None:
    check_answers(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    assert (tmp_path / "new").is_dir()
