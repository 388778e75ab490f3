"""Rows of every file format, whole files and broken ones."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.reading.row_files import list_files, read_rows

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": '他, "x"?', "answer": "3"}]


def json_text(name: str) -> str:
    columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    shapes: dict[str, Any] = {
        "object": {"data": ROWS, "version": 2},
        "columns": columns,
        "pandas": {key: {str(i): value for i, value in enumerate(values)} for key, values in columns.items()},
        "keyed": {f"p{i}": row for i, row in enumerate(ROWS)},
    }
    return json.dumps(shapes.get(name.split(".")[0], ROWS))


def table_text(delimiter: str) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return "\ufeff" + stream.getvalue()


def write(folder: Path, name: str) -> Path:
    file = folder / name
    table = pyarrow.Table.from_pylist(ROWS)
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, file)
        return file
    if name.endswith((".feather", ".arrow")):
        opened = pyarrow.ipc.new_stream if name.startswith("stream") else pyarrow.ipc.new_file
        with pyarrow.OSFile(str(file), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(table)
        return file
    if ".jsonl" in name or ".ndjson" in name or name == "lines.json":
        text = "\ufeff" + "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    elif ".json" in name:
        text = json_text(name)
    else:
        text = table_text("\t" if ".tsv" in name else ";" if "semicolons" in name else ",")
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
    file.write_bytes(packers.get(file.suffix, bytes)(text.encode()))
    return file


def zstd(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl",
        "a.ndjson",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.jsonl.bz2",
        "a.csv.xz",
        "a.json",
        "a.json.gz",
        "object.json",
        "columns.json",
        "pandas.json",
        "keyed.json",
        "lines.json",
        "a.csv",
        "semicolons.csv",
        "a.csv.gz",
        "a.tsv",
        "a.tsv.zst",
        "a.parquet",
        "a.feather",
        "stream.arrow",
    ],
)
def test_every_file_format_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name)
    assert list_files(tmp_path) == [file] == list_files(file)
    rows = list(read_rows(file))
    assert [row.values for row in rows] == ROWS and all(row.problem is None for row in rows)
    assert rows[0].where.startswith(str(file)) and len({row.where for row in rows}) == 2


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet", "a.csv"])
def test_a_file_is_read_whose_name_is_of_another_encoding(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name).rename(tmp_path / os.fsdecode(b"\xe9." + name.partition(".")[2].encode()))
    assert [row.values for row in read_rows(file)] == ROWS


def test_an_arrow_file_whose_name_arrow_does_not_take_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "a.arrow").rename(tmp_path / os.fsdecode(b"\xe9.arrow"))
    with pytest.raises(UserError, match=r"\.arrow: cannot be read as arrow"):
        list(read_rows(file))


def test_a_broken_line_is_a_row_with_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "Q", "answer": "1"}\n{"question": \n3\n')
    rows = list(read_rows(file))
    assert [row.problem is None for row in rows] == [True, False, False]
    assert rows[1].where.endswith("a.jsonl, line 2") and "not JSON" in str(rows[1].problem)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.gz", b"not gzip", "cannot be read as jsonl"),
        ("a.jsonl", b"\xff\xfe\x00", r"cannot be read as jsonl .*; save it as UTF-8"),
        ("a.json", b"{", "cannot be read as json"),
        ("a.json", b'{"a": 1}', "expected a list of rows"),
        ("a.json", b'[{"a": 1}, {"b"', "cannot be read as json"),
        ("a.jsonl.zst", b"not zstd", "cannot be read as jsonl"),
        ("a.arrow", b"ARROW1", "cannot be read as arrow"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.csv", b'q,a\n"1+1,2\n"2+2",4\n3+3,6\n', "lines 2 to 3: a field begins with a quote"),
        ("a.csv", b'q,a\n1+1,2\n"2+2,4\n3+3,6\n', "lines 3 to 4: a field begins with a quote"),
        ("a.tsv", b"q\ta\ta\n1+1\t2\t3\n", "two columns are called 'a'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        list(read_rows(file))
    assert str(file) in str(caught.value)


def test_quotes_that_match_within_a_csv_file_are_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('q,a,,\n"1 +\n1",2,,\na board of 5" by 3",15,,\n"say ""four""\nnow",4,,\n')
    read = [(row.values["q"], row.values["a"]) for row in read_rows(file)]
    assert read == [("1 +\n1", "2"), ('a board of 5" by 3"', "15"), ('say "four"\nnow', "4")]


def test_a_missing_or_unknown_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        list_files(tmp_path / "none")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(UserError, match=r"unknown format; known: \.jsonl"):
        list_files(tmp_path / "a.xlsx")
    with pytest.raises(UserError, match="file in this folder"):
        list_files(tmp_path)


def test_a_pattern_and_a_folder_name_shards_and_leave_out_notes_about_them(tmp_path: Path) -> None:
    for name in ("s-2.jsonl", "s-1.jsonl", "other.csv", "dataset_info.json", "state.json", ".cache/x.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [file.name for file in list_files(tmp_path / "s-*.jsonl")] == ["s-1.jsonl", "s-2.jsonl"]
    assert [file.name for file in list_files(tmp_path)] == ["other.csv", "s-1.jsonl", "s-2.jsonl"]
    with pytest.raises(UserError, match="file matches this pattern"):
        list_files(tmp_path / "t-*.jsonl")


def test_a_pattern_finds_files_whatever_the_folder_before_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / ".checkouts" / "run [1] 50% #2*" / "data" / "a.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert list_files(file.parent / "*.jsonl") == list_files(file.parent.parent / "**" / "a.*") == [file]
    with pytest.raises(UserError, match="file matches this pattern"):
        list_files(tmp_path / "*" / "*" / "data" / "a.jsonl")
    with pytest.raises(UserError, match=r"\*\*\.jsonl: "):
        list_files(tmp_path / "**.jsonl")


def test_folders_that_are_links_are_read_and_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "disk" / "shards"
    for file in (folder / "b" / "own.jsonl", elsewhere / "deep" / "far.jsonl"):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    before = digest_path(folder)
    (folder / "more").symlink_to(elsewhere)
    (folder / "a").symlink_to(folder / "b")
    (folder / "b" / "again.jsonl").symlink_to("own.jsonl")
    (elsewhere / "deep" / "circle").symlink_to(folder)
    expected = [folder / "b" / "own.jsonl", folder / "more" / "deep" / "far.jsonl"]
    assert list_files(folder) == expected == list_files(folder / "**" / "*.jsonl")
    assert {file.resolve() for file in list_files(folder / "m*" / "**" / "*.jsonl")} == {f.resolve() for f in expected}
    with_links = digest_path(folder)
    (elsewhere / "deep" / "far.jsonl").write_text("{} ")
    assert len({before, with_links, digest_path(folder)}) == 3


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / ".#a.jsonl").symlink_to("someone@a-machine")  # Emacs's lock
    assert list_files(tmp_path) == [tmp_path / "a.jsonl"]
    (tmp_path / "more").symlink_to("no-such-disk")
    for path in (tmp_path, tmp_path / "*"):
        with pytest.raises(
            UserError, match=r"^\S*more: a link to no-such-disk, which cannot be found; correct or remove"
        ):
            list_files(path)


def test_a_line_that_is_not_utf_8_is_a_bad_row_after_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"question": "Q", "answer": "1"}\n{"question": "\xe9"}\n')
    good, bad = read_rows(file)
    assert good.problem is None and bad.problem == "not UTF-8 (byte 0xe9 at position 15)"


def test_elements_of_a_json_list_are_read_across_the_ends_of_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": "x" * size, "answer": size} for size in (0, 1, 7, 30, 100)]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(rows, indent=1))
    for size in (1, 2, 5, 64):
        monkeypatch.setattr("mathrl.reading.row_files.CHUNK", size)
        assert [row.values for row in read_rows(file)] == rows


@pytest.mark.parametrize("between", ["", "\n", " " * 50])
def test_a_second_json_list_after_the_first_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(ROWS) + between + json.dumps(ROWS))
    for size in (8, 1 << 20):
        monkeypatch.setattr("mathrl.reading.row_files.CHUNK", size)
        with pytest.raises(UserError, match="more text after the list"):
            list(read_rows(file))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_rows_that_nobody_wants_are_skipped_in_order(tmp_path: Path, name: str) -> None:
    asked = iter([False, True])
    (row,) = read_rows(write(tmp_path, name), wanted=lambda: next(asked))
    assert row.values == ROWS[1] and next(asked, "asked once per row") == "asked once per row"
