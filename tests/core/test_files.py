import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mathrl.core.errors import UserError
from mathrl.core.files import (
    read_json,
    read_jsonl,
    read_numbered_jsonl,
    remove_leftovers,
    write_json,
    write_jsonl,
    write_text,
    written_aside,
)
from mathrl.core.guard import process_start
from mathrl.core.hashing import digest


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), written_aside(target) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_two_writers_of_one_file_do_not_touch_what_the_other_writes(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with written_aside(target) as first:
        first.write_text("first")
        with written_aside(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first" and list(tmp_path.iterdir()) == [target]


def test_what_a_killed_process_left_is_removed_also_if_it_had_the_id_of_this_one(tmp_path: Path) -> None:
    """As after a restart of a container."""
    target = tmp_path / "model"
    target.mkdir()
    parent, own = os.getppid(), os.getpid()
    start = process_start(parent)
    assert start is not None
    names = [
        f".model.{own}-0123abcd-0.partial",
        f"model/.a.{2**22 + own}-0123abcd-0.old",
        f".model.{parent}-{start - 1}-0123abcd-0.partial",  # its number is now another's
    ]
    kept = [f".other.{own}-0123abcd-0.partial", ".model.7.partial", f".model.{parent}-0123abcd-0.old"]
    kept += [f".model.{parent}-{start}-0123abcd-1.partial"]
    for name in (*names, *kept):
        (tmp_path / name).touch()
    with written_aside(target / "b") as aside:
        aside.touch()
        remove_leftovers(target)
        assert aside.exists() and not any((tmp_path / name).exists() for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "model"])


def test_a_folder_replaces_a_folder_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_text("x")
    with written_aside(target) as aside:
        aside.mkdir()
        (aside / "fresh").write_text("y")
    assert [file.name for file in target.iterdir()] == ["fresh"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "other.jsonl").write_text("kept")
    with pytest.raises(UserError, match="results: this is a folder; name a file in it"):
        write_jsonl(tmp_path / "results", [{"a": 1}])
    assert [file.name for file in tmp_path.rglob("*")] == ["results", "other.jsonl"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_come_back_and_equal_rows_are_equal_bytes(tmp_path: Path, name: str) -> None:
    rows = [{"b": 1, "a": "ß"}, {"a": [1, 2]}]
    first, second = tmp_path / name, tmp_path / f"again_{name}"
    assert write_jsonl(first, rows) == 2
    write_jsonl(second, [dict(reversed(row.items())) for row in rows])
    assert list(read_jsonl(first)) == rows
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("line", "said"), [('{"a": 1', "line 2: not JSON"), ("[1]", "line 2: expected a JSON object")])
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 0}\n' + line + "\n")
    with pytest.raises(UserError, match=said):
        list(read_jsonl(file))


@pytest.mark.parametrize("text", ["[1", "1" * 5000, "[" * 100_000])
def test_a_file_that_json_refuses_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"a\.json: not JSON"):
        read_json(file)


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert read_json(file) == {"a": 1} and list(read_jsonl(file)) == [{"a": 1}]


def test_blank_lines_count_in_line_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"a": 0}\n')
    assert list(read_numbered_jsonl(file)) == [(2, {"a": 0})]


def test_a_cut_or_damaged_gzip_is_one_sentence(tmp_path: Path) -> None:
    file, packed = tmp_path / "rows.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000)
    for content in (packed[:-20], packed[:10] + b"\xff" * 8 + packed[18:]):
        file.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            list(read_jsonl(file))


# Whatever json.loads can give: lone surrogates come from other languages' JSON; a high one before a low one is a pair.
STRINGS = st.text(st.characters()).map(lambda text: json.loads(json.dumps(text)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
@example(value="\ud83d")
@example(value="\udce9\udc80 and \\ud83d as written")
@example(value={"\udfff": ["\ud800", "é 请 😀"]})
def test_what_json_loads_gives_is_written_and_read_back(value: Any) -> None:
    # Of 600 files, each of which may take seconds to reach a busy disk.
    with tempfile.TemporaryDirectory() as name, patch("os.fsync"):
        file = Path(name) / "value.json"
        write_json(file, value)
        assert read_json(file) == value
        for rows in (Path(name) / "rows.jsonl", Path(name) / "rows.jsonl.gz"):
            assert write_jsonl(rows, [{"value": value}, {"after": 1}]) == 2
            assert list(read_jsonl(rows)) == [{"value": value}, {"after": 1}]
    assert digest(value) == digest(json.loads(json.dumps(value)))


def test_lone_surrogates_are_escapes_in_texts_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    write_text(tmp_path / "a.md", "é 😀 \ud83d \udce9")
    assert (tmp_path / "a.md").read_bytes() == "é 😀 \\ud83d \\udce9".encode()
    write_json(tmp_path / "a.json", {"é": "😀"})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "é": "😀"\n}\n'.encode()


def test_digests_tell_a_lone_surrogate_from_its_escape_as_written() -> None:
    assert len({digest("\ud83d"), digest("\\ud83d"), digest("\ud83e")}) == 3
