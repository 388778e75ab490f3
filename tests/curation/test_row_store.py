"""Rows on disk: the same curation for any number of shards and processes, and after a kill."""

import json
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.curation import curation, processes, row_store
from mathrl.curation.curated import Curated, Spill
from mathrl.curation.deduplicate import Dropped, deduplicate
from mathrl.curation.processes import in_order
from mathrl.curation.row_shards import SPLITS, Digesting, encode
from mathrl.curation.row_store import RowStore
from mathrl.params.data import Curate, Deduplicate

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()


def problem(number: int, **more: Any) -> Problem:
    return Problem(str(number), f"What is {number}?", (str(number),), "made", "rl", **more)


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def text(number: int) -> str:
    """Twelve words that no other number has in this order."""
    return " ".join(WORDS[(number // 19**i) % 19] + str(number if i == 5 else "") for i in range(12))


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Curate:
    """Two sources that share ids, with duplicates, near-duplicates, leaks, broken rules and bad rows in all places."""
    folder = tmp_path_factory.mktemp("sources")
    rows = [
        {"id": f"r{i}", "question": f"Find {text(i)}", "answer": str(i), "solution": f"So {text(5000 + i)}"}
        for i in range(120)
    ]
    rows[30] |= {"question": rows[5]["question"], "answer": "5"}
    rows[61] |= {"question": rows[7]["question"].upper(), "answer": "conflict"}
    rows[90] |= {"question": "Find " + text(9).replace("lambda", "mu"), "answer": "9"}
    rows[44] |= {"question": f"Prove that {text(44)}."}
    rows[50] = {"id": "r50", "question": "no answer"}
    rows[99] |= {"id": "r3"}
    more = [{"id": f"r{i}", "question": f"Compute {text(1000 + i)}", "answer": str(i)} for i in range(40)]
    test = [{"id": f"t{i}", "question": f"Determine {text(100 + i)}", "answer": str(i)} for i in range(12)]
    shared = {"type": "file", "id_key": "id"}
    return Curate.model_validate({
        "sources": [
            {"name": "one", "path": write(folder / "one.jsonl", rows), "split": "rl", "solution_key": "solution",
             **shared},
            {"name": "two", "path": write(folder / "two.jsonl", more), "split": "rl", **shared},
            {"name": "test", "path": write(folder / "test.jsonl", test), "split": "test", **shared},
        ],
        "on_bad_row": "reject",
        "deduplicate": {"near": {"ngram": 2, "threshold": 0.6}},
        "quality": {},
        "dev_share": 0.1,
        "sft_share": 0.2,
    })  # fmt: skip


def content(curated: Curated) -> dict[str, Any]:
    """All that curation makes."""
    return {
        **{split: list(problems.lines()) for split, problems in curated.splits.items()},
        "dropped": list(curated.dropped), "hits": list(curated.hits), "broken": list(curated.broken),
        "rejected": [row.to_row() for row in curated.rejected],
        "variants": [group.to_row() for group in curated.variants],
        "steps": curated.steps, "inputs": curated.inputs,
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected(params: Curate) -> dict[str, Any]:
    """What curation makes in one shard and one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "cores", lambda: 1)
        return content(curation.run(params, 0))


def test_the_example_leaves_no_step_out(expected: dict[str, Any]) -> None:
    found = expected
    reasons = {row.reason for row in found["dropped"]}
    assert reasons == {"duplicate", "conflicting answers", "proof", "contaminated"}
    assert [row["where"] for row in found["rejected"]] == ["one.jsonl, line 51", "one.jsonl, line 100"]
    assert "id 'r3' occurs in an earlier row too" in found["rejected"][1]["reason"]
    assert all(found[split] for split in SPLITS) and found["variants"]
    ids = {json.loads(line)["id"] for split in SPLITS for line in found[split]}
    assert "two/rl/r0" in ids and "r0" in ids


@pytest.mark.parametrize(("rows", "cores"), [(23, 1), (40, 2)])
def test_shards_and_processes_change_nothing(
    params: Curate, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rows: int, cores: int
) -> None:
    monkeypatch.setattr(row_store, "ROWS", rows)
    monkeypatch.setattr(processes, "cores", lambda: cores)
    assert content(curation.run(params, 0)) == expected


def test_a_killed_run_goes_on_after_its_last_complete_shard(
    params: Curate, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_store, "ROWS", 16)
    monkeypatch.setattr(processes, "cores", lambda: 1)
    written = row_store.write_shard
    folder, count = tmp_path / "rows", 0

    def killed(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            (given[1].stem.with_suffix(".jsonl")).write_text("half a li")
            raise KeyboardInterrupt
        return written(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("mathrl.curation.curated.write_shard", killed)
        curation.run(params, 0, folder=folder)
    complete = {file: file.stat().st_mtime_ns for file in folder.glob("*.arrow")}
    assert len(complete) == 4
    assert content(curation.run(params, 0, folder=folder)) == expected
    assert {file: file.stat().st_mtime_ns for file in complete} == complete, "complete shards are not written again"


def test_a_run_killed_later_does_not_repeat_what_is_complete(
    params: Curate, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, at, marks = "mathrl.curation.curation._Step._search", 4, "*.decontaminate.hits"
    monkeypatch.setattr(row_store, "ROWS", 16)
    monkeypatch.setattr(processes, "cores", lambda: 1)
    work, folder, count = resolve_name(step), tmp_path / "rows", 0

    def killed(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return work(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, killed)
        curation.run(params, 0, folder=folder)
    complete = {file: file.stat().st_mtime_ns for file in folder.glob(marks)}
    assert complete
    before = count
    with monkeypatch.context() as patch:
        patch.setattr(step, killed)
        assert content(curation.run(params, 0, folder=folder)) == expected
    assert {file: file.stat().st_mtime_ns for file in complete} == complete
    assert count - before == len([*folder.glob("*.hits")]) - len(complete), "what is complete is not searched again"


def test_the_first_bad_row_in_the_file_stops_the_run_whatever_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": str(i % 23), "question": f"Q{i}?", "answer": "1"} for i in range(40)]
    rows[30]["answer"] = None  # type: ignore[assignment]
    source = {"type": "file", "name": "s", "path": write(tmp_path / "a.jsonl", rows), "split": "rl", "id_key": "id"}
    monkeypatch.setattr(row_store, "ROWS", 4)
    with pytest.raises(UserError, match=r"a\.jsonl, line 24: id '0' occurs in an earlier row too; correct the row"):
        curation.run(Curate.model_validate({"sources": [source]}), 0)
    (tmp_path / "a.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes()[:300] + b"\n{\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 7: not JSON"):
        curation.run(Curate.model_validate({"sources": [source]}), 0)


def test_a_shard_of_bad_rows_alone_holds_nothing_that_is_similar(
    params: Curate, expected: dict[str, Any], tmp_path: Path
) -> None:
    bad = {"type": "file", "name": "bad", "path": write(tmp_path / "bad.jsonl", [{"question": "no answer"}])}
    sources = [{**bad, "split": "rl"}, *params.model_dump()["sources"]]
    first, *others = curation.run(Curate.model_validate(params.model_dump() | {"sources": sources}), 0).steps
    assert first.reasons == {"bad row": 1} and others == expected["steps"]


def test_rows_are_found_by_what_they_share() -> None:
    store = RowStore.of([problem(i % 5) for i in range(8)], Digesting())
    numbers, groups = store.alike("id")
    assert numbers.tolist() == [0, 5, 1, 6, 2, 7] and groups.tolist() == [0, 0, 1, 1, 2, 2]
    store.drop(np.array([5]))
    assert store.alike("high", "low")[0].tolist() == [1, 6, 2, 7] and store.in_earlier(6).tolist() == [6, 7]
    store.rename(np.array([6]), "made")
    assert store.alike("id")[0].tolist() == [2, 7] and store.problem(6).id == "made/rl/1"


def test_the_winner_of_equal_answers_is_named_without_reading_it(expected: dict[str, Any]) -> None:
    of_reason = {row.id: row for row in expected["dropped"] if row.reason == "duplicate"}
    assert of_reason["r30"].other == "r5" and of_reason["r30"].detail == "exact"
    assert of_reason["r90"].other == "r9"
    rows = [problem(1), problem(1, subject="algebra").with_(id="b"), problem(1).with_(id="c", answers=("1", "2"))]
    store = RowStore.of(rows, Digesting())
    store.rename(np.array([0]), "made")
    reasons = dict(deduplicate(store, Deduplicate()).dropped)
    assert {number: why.other for number, why in reasons.items()} == {1: "made/rl/1", 2: "made/rl/1"}


def test_problems_come_back_as_they_went_in_and_moved_rows_with_their_split() -> None:
    rows = [problem(1), problem(2, solution="\ud83d half", level=3, extra={"a": [1, None]}), problem(3)]
    store = RowStore.of(rows, Digesting(grams=True))
    assert list(store.all()) == rows and store.all()[1] == rows[1] and store.all().levels().tolist() == [-1, 3, -1]
    store.splits[2] = SPLITS.index("dev")
    lines = [encode(row) for row in (rows[0], rows[1], rows[2].with_(split="dev"))]
    assert list(store.all().lines()) == lines and store.all().of("dev")[0].split == "dev"
    assert not RowStore.of([], Digesting()).all() and RowStore.of([], Digesting()).alike("id")[0].tolist() == []


def square(shared: int, task: int) -> int:
    return shared + task * task


def test_an_error_in_a_stream_comes_after_the_results_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream() -> Any:
        yield from range(5)
        raise UserError("broken")

    for cores in (1, 2):
        monkeypatch.setattr(processes, "cores", lambda count=cores: count)
        results: list[int] = []
        with pytest.raises(UserError, match="broken"):
            for result in in_order(square, 100, stream()):
                results.append(result)
        assert results == [100, 101, 104, 109, 116]


WITH_WORKERS = """
import importlib.util, operator, sys
import mathrl.reading.sniff
from mathrl.curation import processes
sys.modules["__main__"].__spec__ = importlib.util.find_spec("mathrl.reading.sniff")  # as python -m sets it
processes.cores = lambda: 2
print(list(processes.in_order(operator.add, 100, range(4))))
"""


def test_workers_of_a_module_that_runs_as_a_program_warn_of_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_WORKERS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[100, 101, 102, 103]\n", "")


def test_a_list_on_disk_is_a_list(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "s.jsonl", Dropped)
    items = [Dropped(f"a/{i}", "a", "rl", "duplicate", None, "", f"{i} \ud83d 中", ("1", "2")) for i in range(5)]
    for item in items:
        spill.append(item)
        assert spill[-1] == item
    assert list(spill) == items and spill[-2] == items[3] and len(spill) == 5
    with pytest.raises(IndexError):
        spill[5]
