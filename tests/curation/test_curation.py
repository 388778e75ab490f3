"""The curate stage's steps on small files, with an account of every row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.curation import curation
from mathrl.curation import curation_account as curation_report
from mathrl.params.data import Curate


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def curate(**given: Any) -> Curate:
    return Curate.model_validate(given)


def file_source(path: str, split: str, **more: Any) -> dict[str, Any]:
    return {"type": "file", "name": f"source_{split}", "path": path, "split": split, "id_key": "id", **more}


LONG = "a farmer has twelve cows and sells some of them to his neighbour how many are left"


def test_splits_are_disjoint_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    train = [{"id": f"t{i}", "question": f"what is {i} plus {i}", "answer": str(2 * i)} for i in range(20)]
    train += [
        {"id": "leak", "question": f"so {LONG}", "answer": "3"},
        {"id": "same", "question": "What is 900 plus 900?", "answer": "1800"},
        {"id": "bad", "question": "no answer"},
    ]
    test = [
        {"id": "e0", "question": LONG, "answer": "3"},
        {"id": "e1", "question": "What is  900 plus 900?", "answer": "1800"},
    ]
    params = curate(
        sources=[
            file_source(write(tmp_path, "a.jsonl", train), "rl"),
            file_source(write(tmp_path, "b.jsonl", test), "test"),
        ],
        on_bad_row="reject",
        dev_share=0.2,
        sft_share=0.25,
    )
    found = curation.run(params, seed=0)
    assert {s: len(rows) for s, rows in found.splits.items()} == {"sft": 4, "rl": 12, "dev": 4, "test": 2}
    assert {(d.id, d.reason, d.other) for d in found.dropped} == {
        ("leak", "contaminated", "e0"),
        ("same", "duplicate", "e1"),
    }
    assert [r.where.rsplit("/")[-1] for r in found.rejected] == ["a.jsonl, line 23"]
    assert sum(map(len, found.splits.values())) + len(found.dropped) + len(found.rejected) == len(train) + len(test)
    ids = [p.id for rows in found.splits.values() for p in rows]
    assert len(ids) == len(set(ids))
    again = curation.run(params, seed=0)
    assert again.splits == found.splits
    assert curation.run(params, seed=1).splits["dev"] != found.splits["dev"]


def test_a_bad_row_stops_the_run_by_default(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"id": "x", "question": "Q?", "answer": "1"}, {"id": "y", "question": "Q2?"}])
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: field 'answer': no answer .*on_bad_row to reject"):
        curation.run(curate(sources=[file_source(path, "rl")]), seed=0)


def test_an_empty_source_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match=r"empty\.jsonl: no row in it"):
        curation.run(curate(sources=[file_source(str(tmp_path / "empty.jsonl"), "rl")]), seed=0)
    with pytest.raises(UserError, match=r"gone\.jsonl: no such file or folder"):
        curation.plan(curate(sources=[file_source(str(tmp_path / "gone.jsonl"), "rl")]))


def test_equal_questions_without_deduplication_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.jsonl",
        [{"id": "x", "question": "Q?", "answer": "1"}, {"id": "y", "question": "q ?", "answer": "1"}],
    )
    params = curate(sources=[file_source(path, "rl")], deduplicate={"exact": False})
    with pytest.raises(UserError, match=r"x \(rl\) and y \(rl\) ask the same question"):
        curation.run(params, seed=0)


def test_problems_of_one_generator_are_told_apart_by_question_alone_unless_asked() -> None:
    generated = {"type": "generated", "name": "g", "generator": "chain", "counts": {"rl": 200, "test": 100}}
    assert len(curation.run(curate(sources=[generated]), seed=0).splits["rl"]) == 200
    strict = curate(sources=[generated], decontaminate={"within_generator": True})
    assert len(curation.run(strict, seed=0).splits["rl"]) < 200


def test_rows_of_one_template_all_stay_where_the_source_says_so_and_others_are_compared_still(tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "question": f"There are {i} hens. {LONG}?", "answer": str(i)} for i in range(40)]
    source = file_source(write(tmp_path, "a.jsonl", rows), "rl")
    with pytest.raises(
        UserError, match=r"no row to train on is left of 36 \(contaminated 36; .*set one_template: true on source_rl if"
    ):
        curation.run(curate(sources=[source], test_share=0.1), 0)
    alike = {**source, "one_template": True}
    found = curation.run(curate(sources=[alike], test_share=0.1), 0)
    assert [len(found.splits[split]) for split in ("rl", "test")] == [36, 4] and not found.dropped
    assert Curate(sources=(alike,), decontaminate={"within_generator": True}).not_compared_within() == frozenset()
    other = file_source(write(tmp_path, "b.jsonl", [{"id": "e", "question": LONG, "answer": "3"}]), "test")
    with pytest.raises(UserError, match=r"no row to train on is left of 40 \(contaminated 40; the first: r0 for e,"):
        curation.run(curate(sources=[alike, other]), 0)


def test_the_report_and_the_manifest_add_up_and_name_no_place(tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "question": f"Q{i}?", "answer": "1"} for i in range(6)] + [
        {"id": "z", "question": "q0 ?", "answer": "1"}
    ]
    params = curate(sources=[file_source(write(tmp_path, "a.jsonl", rows), "rl", licence="MIT")])
    planned = curation.plan(params)
    found = curation.run(params, 0, planned)
    account = curation_report.manifest(found, planned, params, 0, {})
    assert account["steps"][1] == {"step": "deduplicate", "rows_in": 7, "rows_out": 6, "reasons": {"duplicate": 1}}
    assert account["splits"]["rl"] == {"problems": 6, "by_source": {"source_rl": 6}}
    curation_report.write_report(tmp_path / "report", found, params, 0)
    text = (tmp_path / "report" / "report.md").read_text()
    assert str(tmp_path) not in text and str(tmp_path) not in json.dumps(account)
    assert "`z` for `r0`" in text and "7 rows" not in text
    assert re.search(r"\| source_rl → rl \| a\.jsonl \| 7 \| [0-9a-f]{16} \| MIT \|", text)
    assert "1 rows went; 1 rows won" in text
    alike = curate(sources=params.sources, deduplicate={"exact": False, "near": {}})
    account_of_near = "\n".join(curation_report._duplicates(found, alike))
    assert "Two rows are one when they have a Jaccard similarity of 0.8 or more" in account_of_near
    assert {f.name for f in (tmp_path / "report").iterdir()} == {"report.md", "levels.png"}


def test_what_keep_and_limit_leave_out_is_counted_with_the_step(tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "question": f"Q{i}?", "answer": "1", "lang": "en" if i < 7 else "zh"} for i in range(9)]
    path = write(tmp_path, "a.jsonl", [*rows, {"id": "bad", "lang": "en"}])
    source = file_source(path, "rl", keep={"lang": "en"}, limit=4)
    found = curation.run(curate(sources=[source], on_bad_row="reject"), seed=0)
    assert found.splits["rl"] != curation.run(curate(sources=[source], on_bad_row="reject"), seed=1).splits["rl"]
    step = found.steps[0]
    assert (step.rows_in, step.rows_out) == (10, 4) and len(found.splits["rl"]) == 4
    assert step.reasons.total() == 6 and step.reasons["above the limit"] >= 3
    # Every row is counted once; what was not drawn is not decoded, so that its other faults are unknown.
    assert step.reasons["left out by keep"] <= 2 and step.reasons["bad row"] <= 1


def test_keep_looks_inside_fields_and_test_share_holds_rows_out(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{i}", "question": f"Q{i}?", "answer": "1", "meta": json.dumps({"lang": ["en", "de", "zh"][i % 3]})}
        for i in range(60)
    ]
    source = file_source(write(tmp_path, "a.jsonl", rows), "rl", keep={"meta.lang": ["en", "de"]})
    found = curation.run(curate(sources=[source], test_share=0.25, dev_share=0.1), seed=0)
    assert found.steps[0].reasons == {"left out by keep": 20}
    assert {split: len(problems) for split, problems in found.splits.items()} == {
        "sft": 0,
        "rl": 27,
        "dev": 3,
        "test": 10,
    }


def test_hits_are_told_by_evaluation_set_whatever_the_ids(tmp_path: Path) -> None:
    """Both sets have an id "1"."""
    other = LONG.replace("farmer", "baker").replace("cows", "loaves")
    train = [
        {"id": "t1", "question": f"So {LONG}?", "answer": "1"},
        {"id": "t2", "question": f"So {other}?", "answer": "1"},
    ]
    sets = [
        write(tmp_path, f"{name}.jsonl", [{"id": "1", "question": text, "answer": "2"}])
        for name, text in (("farm", LONG), ("shop", other))
    ]
    against = {"files": sets}
    none = curate(sources=[file_source(write(tmp_path, "a.jsonl", train), "rl")], decontaminate=against)
    with pytest.raises(
        UserError, match=r"no row to train on is left of 2 \(contaminated 2; the first: t1 for 1, 10-gram"
    ):
        curation.run(none, 0)
    own = {"id": "t3", "question": "1+1=", "answer": "2"}
    both = file_source(write(tmp_path, "b.jsonl", [*train, own]), "rl")
    params = curate(sources=[both], decontaminate=against)
    planned = curation.plan(params)
    found = curation.run(params, 0, planned)
    assert {home for _, home in found.overlap} == set(sets)
    curation_report.write_report(tmp_path / "report", found, params, 0)
    text = (tmp_path / "report" / "report.md").read_text()
    assert all(f"| source_rl | {path} | 1 |" in text for path in sets)


def test_a_hit_of_a_small_share_is_shown_and_its_row_stays(tmp_path: Path) -> None:
    beginning = " ".join(LONG.split()[:10])
    train = [{"id": "stays", "question": f"{beginning} at the market on each of the seven days", "answer": "1"}]
    sources = [file_source(write(tmp_path, "a.jsonl", train), "rl")]
    against = write(tmp_path, "e.jsonl", [{"id": "e", "question": LONG, "answer": "2"}])
    params = curate(sources=sources, decontaminate={"files": [against], "min_share": 0.8})
    planned = curation.plan(params)
    found = curation.run(params, 0, planned)
    assert [p.id for p in found.splits["rl"]] == ["stays"] and not found.dropped
    assert [(hit.train_id, hit.eval_id) for hit in found.hits] == [("stays", "e")]
    assert found.hits[0].share < 0.8 and found.hits[0].to_row(0.8)["dropped"] is False
    curation_report.write_report(tmp_path / "report", found, params, 0)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "No hit large enough to drop a row." in text and "| 0.5 to 0.6 | 0 | 1 |" in text


@pytest.mark.parametrize(("others", "told"), [(8, True), (30, False)])
def test_many_hits_of_short_texts_are_pointed_out(tmp_path: Path, others: int, told: bool) -> None:
    """A number is a gram and an operator is none: 9-4*4= stands whole in 8+9+4+4*1=."""
    formulas = ["8+9+4+4*1=", "9-4-4+2=", *(f"{n}*7+{n}=" for n in range(100, 100 + others))]
    train = [{"id": f"t{n}", "question": text, "answer": "1"} for n, text in enumerate(formulas)]
    sources = [file_source(write(tmp_path, "a.jsonl", train), "rl")]
    against = write(tmp_path, "e.jsonl", [{"id": "e", "question": "9-4*4=", "answer": "-7"}])
    params = curate(sources=sources, decontaminate={"files": [against]})
    planned = curation.plan(params)
    found = curation.run(params, 0, planned)
    assert len(found.dropped) == 2 and all(hit.whole for hit in found.hits)
    curation_report.write_report(tmp_path / "report", found, params, 0)
    text = (tmp_path / "report" / "report.md").read_text()
    assert ("**2 of 10 rows of source_rl hold a short evaluation text whole.**" in text) is told
    assert ("curate.decontaminate=null" in text) is told


def test_a_bad_row_of_a_further_evaluation_file_is_not_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"id": "x", "question": "Q?", "answer": "1"}])
    against = write(tmp_path, "e.jsonl", [{"id": "e", "question": LONG, "answer": "1"}, {"id": "f", "question": "no"}])
    sources, clean = [file_source(path, "rl")], {"files": [against]}
    with pytest.raises(UserError, match=r"e\.jsonl, line 2: field 'answer'"):
        curation.run(curate(sources=sources, decontaminate=clean), seed=0)
    found = curation.run(curate(sources=sources, decontaminate=clean, on_bad_row="reject"), seed=0)
    assert len(found.rejected) == 1 and found.evaluation_sizes == {against: 1}


def test_a_benchmark_is_never_shrunk(tmp_path: Path) -> None:
    twin, near = f"{LONG} 5", f"{LONG}, please 5"
    rows = [
        {"id": str(i), "question": q, "answer": a} for i, (q, a) in enumerate([(twin, "1"), (twin, "2"), (near, "1")])
    ]
    path = write(tmp_path, "test.jsonl", rows)
    train = write(tmp_path, "rl.jsonl", [{"id": "r", "question": twin, "answer": "1"}, rows[0] | {"question": "new"}])
    sources = [file_source(train, "rl"), file_source(path, "test")]
    made = curation.run(curate(sources=sources, deduplicate={"near": {"threshold": 0.7, "ngram": 3}}), 0)
    assert [(p.question, p.answers) for p in made.splits["test"]] == [(r["question"], (r["answer"],)) for r in rows]
    assert [p.question for p in made.splits["rl"]] == ["new"]
    assert any("asks it twice" in group.difference for group in made.variants)


def test_rows_with_a_contaminated_solution_stay_in_rl(tmp_path: Path) -> None:
    leaked = "first add one two three four five six seven eight nine ten and then divide all of it by eleven"
    rows = [
        {
            "id": str(i),
            "question": f"question number {i}",
            "answer": "1",
            "solution": leaked if i % 2 else f"so it is {i}",
        }
        for i in range(20)
    ]
    test = [{"id": "t", "question": "What is it?", "answer": "1", "solution": leaked}]
    sources = [
        file_source(write(tmp_path, f"{split}.jsonl", given), split, solution_key="solution")
        for split, given in (("rl", rows), ("test", test))
    ]
    made = curation.run(curate(sources=sources, sft_share=0.5), 0)
    assert len(made.splits["sft"]) == len(made.splits["rl"]) == 10 and made.solutions_barred == 10
    assert {p.solution for p in made.splits["rl"]} == {leaked}
    account = curation_report.manifest(made, curation.plan(curate(sources=sources)), curate(sources=sources), 0, {})
    assert account["solutions_barred_from_sft"] == 10
