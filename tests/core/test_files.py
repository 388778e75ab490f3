import gzip
from pathlib import Path

import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, read_numbered_jsonl, write_jsonl, written_aside


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), written_aside(target) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_a_folder_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_text("x")
    with written_aside(target) as aside:
        aside.mkdir()
        (aside / "fresh").write_text("y")
    assert [file.name for file in target.iterdir()] == ["fresh"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_come_back_and_equal_rows_are_equal_bytes(tmp_path: Path, name: str) -> None:
    rows = [{"b": 1, "a": "ß"}, {"a": [1, 2]}]
    first, second = tmp_path / name, tmp_path / f"again_{name}"
    assert write_jsonl(first, rows) == 2
    write_jsonl(second, [dict(reversed(row.items())) for row in rows])
    assert list(read_jsonl(first)) == rows
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("line", "said"), [('{"a": 1', "line 2: not JSON"), ("[1]", "line 2: a JSON object is wanted")]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 0}\n' + line + "\n")
    with pytest.raises(UserError, match=said):
        list(read_jsonl(file))


def test_blank_lines_count_in_line_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"a": 0}\n')
    assert list(read_numbered_jsonl(file)) == [(2, {"a": 0})]


def test_a_cut_gzip_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        list(read_jsonl(file))
