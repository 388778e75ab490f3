"""Named sources: local files first, the hub second; and the facts of the real sets where they are at hand."""

import gzip
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.curation.decontaminate import EvaluationIndex, find_hits
from mathrl.data.grams import exact_key
from mathrl.params.data import HubSource
from mathrl.reading import sources as rooms
from mathrl.reading.reading import Read, input_row, read_source
from mathrl.reading.registry import REGISTRY, benchmark, find, newer_than
from mathrl.reading.row_formats import to_problem
from mathrl.reading.sources import resolve_benchmark, resolve_named, resolve_source

GSM8K = [
    {"question": "Clips?", "answer": "48+24=<<48+24=72>>72\n#### 72"},
    {"question": "Eggs?", "answer": "#### 1,018"},
]


def problems(resolved: rooms.ResolvedSource) -> list[Problem]:
    found = list(read_source(resolved, seed=0))
    assert all(isinstance(item, Problem) for item in found), found
    return found  # type: ignore[return-value]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())


@pytest.mark.parametrize(
    "name",
    ["gsm8k_test.jsonl", "gsm8k_test.jsonl.gz", "gsm8k_openai_test.jsonl", "gsm8k/test.jsonl", "gsm8k/test/0.jsonl"],
)
def test_local_files_come_first_in_the_published_fields_too(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, GSM8K)
    resolved = resolve_benchmark("gsm8k", str(tmp_path))
    assert resolved.files == (tmp_path / name,) and resolved.hub is None
    assert [p.answers for p in problems(resolved)] == [("72",), ("1018",)]


def test_without_a_local_file_the_hub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATHRL_DATA", raising=False)
    resolved = resolve_named(REGISTRY["gsm8k"], "train", None)
    assert (resolved.hub, resolved.subset, resolved.hub_split) == ("openai/gsm8k", "main", "train")
    assert "hub openai/gsm8k (main), split train" in resolved.describe()
    monkeypatch.setenv("MATHRL_DATA", str(tmp_path))
    write(tmp_path / "gsm8k_train.jsonl", GSM8K)
    assert resolve_named(REGISTRY["gsm8k"], "train", None).files
    monkeypatch.setenv("MATHRL_DATA", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"MATHRL_DATA: .*gone is not a folder"):
        resolve_named(REGISTRY["gsm8k"], "train", None)


def test_a_set_that_datasets_saved_to_disk_is_read_without_the_notes_beside_it(tmp_path: Path) -> None:
    import datasets

    datasets.DatasetDict(test=datasets.Dataset.from_list(GSM8K)).save_to_disk(tmp_path / "gsm8k")
    write(tmp_path / "gsm8k" / "test" / "._copied.jsonl", GSM8K)
    assert [p.answers for p in problems(resolve_benchmark("gsm8k", str(tmp_path)))] == [("72",), ("1018",)]


def test_a_row_without_an_id_changes_nothing_for_the_rows_after_it(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "question": f"Q{n}?", "answer": str(n), "solution": "s"} for n in range(3)]
    write(tmp_path / "gsm8k_test.jsonl", [rows[0], rows[1] | {"id": None}, rows[2]])
    read = list(read_source(resolve_benchmark("gsm8k", str(tmp_path)), seed=0))
    assert [item.id for item in read if isinstance(item, Problem)] == ["r0", "r2"]


def test_rows_of_a_csv_file_are_kept_by_a_number_too(tmp_path: Path) -> None:
    (tmp_path / "aime23_test.csv").write_text("ID,Year,Question,Answer\na,2023,Q?,5\nb,2022,R?,6\n")
    assert [p.id for p in problems(resolve_benchmark("aime23", str(tmp_path)))] == ["a"]


def test_a_source_of_one_year_reads_that_year_by_its_name_and_all_by_its_hub_id(tmp_path: Path) -> None:
    rows = [{"ID": f"{year}-1", "Year": year, "Question": "Q?", "Answer": "7"} for year in (2021, 2022, 2023)]
    for name in ("aime21", "aime23"):  # the first of its hub id, and another
        write(tmp_path / f"{name}_test.jsonl", rows)

    def years(id: str, **more: Any) -> list[str]:
        source = HubSource(name="own", id=id, split="test", **more)
        return [problem.id[:4] for problem in problems(resolve_source(source, str(tmp_path)))]

    assert years("aime23") == ["2023"] and years("aime23", keep={"Answer": "7"}) == ["2023"]
    assert (
        years(REGISTRY["aime23"].hub) == years("aime23", keep={"Year": [2021, 2022, 2023]}) == ["2021", "2022", "2023"]
    )


def test_a_name_or_its_hub_id_finds_the_same_source() -> None:
    assert find("gsm8k") is find("openai/gsm8k") is REGISTRY["gsm8k"]
    assert find("nobody/nothing") is None
    with pytest.raises(UserError, match="no source named 'gsm9k'; known: gsm8k, math"):
        resolve_source(HubSource(name="x", id="gsm9k", split="rl"), None)
    with pytest.raises(UserError, match="no benchmark 'dapo_17k'; known: test"):
        benchmark("dapo_17k")
    with pytest.raises(UserError, match="math500 has no split 'train'; it has: test"):
        resolve_source(HubSource(name="x", id="math500", split="rl"), None)


def test_defaults_that_are_written_out_change_nothing(tmp_path: Path) -> None:
    """A run with overrides has its params/ written out in full."""
    write(tmp_path / "math_train.jsonl", [{"problem": "P?", "solution": r"\boxed{3}", "level": "Level 5"}])
    short = HubSource(name="math", id="math", split="rl")
    long = HubSource.model_validate(short.model_dump())
    found = [resolve_source(source, str(tmp_path)) for source in (short, long)]
    assert found[0] == found[1] and problems(found[1])[0].level == 5
    own = HubSource(name="math", id="math", split="rl", prompt_key="problem", answer_key="level")
    assert problems(resolve_source(own, str(tmp_path)))[0].answers == ("Level 5",)


def test_every_entry_says_what_a_reader_of_the_report_needs() -> None:
    for named in REGISTRY.values():
        assert named.licence and named.title and "/" in named.hub and named.splits and named.stems, named.name
        assert named.evaluation is None or named.evaluation in named.splits, named.name


def local_repository(folder: Path, rows: list[dict[str, Any]]) -> str:
    """A data set repository as the hub serves it: a card that names the configuration, and parquet files."""
    import pyarrow
    import pyarrow.parquet

    (folder / "main").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "main" / "train-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n---\n"
    )
    return str(folder)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes folders of one name and layout for one data set, whatever is in them."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_cache")
def test_the_hubs_client_reads_a_repository_of_the_published_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MATHRL_DATA", raising=False)
    repository = local_repository(tmp_path / "gsm8k", GSM8K)
    resolved = replace(resolve_named(REGISTRY["gsm8k"], "train", None), hub=repository)
    found = problems(resolved)
    assert [p.answers for p in found] == [("72",), ("1018",)] and found[0].id == "gsm8k/main-train:1"
    own = HubSource(name="own", id=repository, subset="main", split="rl", prompt_key="question", answer_rule="hash")
    assert [p.answers for p in problems(resolve_source(own, None))] == [("72",), ("1018",)]


@pytest.mark.usefixtures("own_cache")
def test_the_account_of_the_hub_has_its_commit_its_rows_and_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def account(number: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
        own = HubSource(
            name="own", id=local_repository(tmp_path / str(number), rows), subset="main", split="rl", answer_rule="hash"
        )
        read, resolved = Read(), resolve_source(own, None)
        assert len(list(read_source(resolved, 0, read))) == 2
        return input_row(resolved, read)

    first, again, other = account(0, GSM8K), account(1, GSM8K), account(2, GSM8K[::-1])
    assert first["rows"] == 2 and first["commit"] is None, "a folder has no commit"
    assert first["sha256"] == again["sha256"] != other["sha256"] and len(first["sha256"]) == 64
    builder = datasets.load_dataset_builder

    def on_the_hub(*words: Any, **more: Any) -> Any:
        """The client's own builder of a folder, with what it has of the hub: the commit as its hash."""
        made = builder(*words, **more)
        made.hash = 40 * "c"
        return made

    monkeypatch.setattr(datasets, "load_dataset_builder", on_the_hub)
    assert account(3, GSM8K)["commit"] == 40 * "c"


def test_rows_with_a_picture_have_the_same_digest_every_time(tmp_path: Path, own_cache: None) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{**row, "picture": {"bytes": b"P6 1 1 255 abc", "path": None}} for row in GSM8K])
    folder = Path(local_repository(tmp_path / "pictures", GSM8K))
    rows.cast_column("picture", datasets.Image()).to_parquet(folder / "main" / "train-00000-of-00001.parquet")
    own = HubSource(name="own", id=str(folder), subset="main", split="rl", answer_rule="hash")
    accounts = [Read(), Read()]
    kept = [list(read_source(resolve_source(own, None), 0, read)) for read in accounts]
    assert kept[0] == kept[1] and len({read.hub_rows.hexdigest() for read in accounts}) == 1


def test_a_hub_that_does_not_answer_is_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    source = HubSource(name="x", id=str(tmp_path / "nothing"), split="rl")
    with pytest.raises(UserError, match=r"cannot be read from the hub .*data_folder or \$MATHRL_DATA"):
        list(read_source(resolve_source(source, None), seed=0))


def test_published_rows_of_other_sets() -> None:
    rows = {
        "math": {"problem": "Find $x$.", "level": "Level 5", "type": "Algebra", "solution": r"$\boxed{3}$"},
        "math500": {"problem": "P", "solution": "s", "answer": "3", "level": 2, "unique_id": "u"},
        "svamp": {"Body": "There are 3.", "Question": "Q", "Answer": 145.0, "ID": "c", "Type": "T"},
        "cmath": {"question": "芳芳", "golden": 9, "grade": 1},
        "open_reasoner_zero": {"0": {"value": "Q"}, "1": {"ground_truth": {"value": "3"}}},
        "dapo_17k": {"prompt": [{"role": "user", "content": "Q"}], "reward_model": {"ground_truth": "34"}},
        "gpqa_diamond": {"Question": "Q", "Correct Answer": "a", "Incorrect Answer 1": "b"},
        "countdown": {"nums": [3, 7, 2], "target": 20},
        "aime26": {"problem_idx": 1, "problem": "P", "answer": 277, "problem_type": ["Algebra", "Geometry"]},
        "mgsm_zh": {"question": "Q", "answer": None, "answer_number": 18},
        "sat_math": {
            "query": "Q: 1+1? Answer Choices: (A)1 (B)2\nA: Among A through B, the answer is",
            "choices": ["(A)1", "(B)2"],
            "gold": [1],
        },
        "gaokao_mathcloze": {"query": "问题：1+1？\n答案：", "answer": "2"},
        "mmlu_stem": {"question": "Q", "subject": "astronomy", "choices": ["x y", "z"], "answer": 1},
        "bbh_web_of_lies": {"input": "Does A tell the truth?", "target": "Yes"},
        "aime23": {"ID": "2023-I-1", "Year": 2023, "Question": "Q", "Answer": "7"},
        "olympiadbench": {"question": "Q", "final_answer": ["2"], "solution": ["s"], "subfield": "Algebra"},
    }
    for name, values in rows.items():
        shape = next(shape for shape in REGISTRY[name].shapes if shape.fits(values))
        found = to_problem(values, shape, name="f:1", source=name, split="test", seed=0)
        assert found.answers and found.question, name
        assert found.subject == "Algebra, Geometry" or name != "aime26"


def test_a_benchmark_is_newer_than_a_model_of_an_earlier_month() -> None:
    told = {
        released: [name for name in REGISTRY if newer_than(name, released)] for released in ("2025-08-14", "2026-01")
    }
    assert told == {"2025-08-14": ["aime26", "hmmt25_nov", "hmmt26"], "2026-01": ["aime26", "hmmt26"]}
    assert not newer_than("aime26", None) and not newer_than("test", "2024-01")
    assert all(named.released for named in REGISTRY.values() if named.evaluation and named.name != "numina_math")


REAL = os.environ.get("MATHRL_DATA")
real = pytest.mark.skipif(not REAL, reason="MATHRL_DATA names no folder with the real sets")


@cache
def questions(name: str, split: str) -> list[Problem]:
    return problems(resolve_named(REGISTRY[name], split, REAL))


@real
def test_facts_of_the_real_sets() -> None:
    """972 MATH-test questions and 5 of AMC23 stand in DAPO-17k word for word, none of AIME24."""

    def words(name: str, split: str) -> set[str]:
        return {" ".join(p.question.split()) for p in questions(name, split)}

    dapo = words("dapo_17k", "train")
    assert len(dapo & words("math", "test")) == 972
    assert len(dapo & words("amc23", "test")) == 5
    assert not dapo & words("aime24", "test")
    assert not words("gsm8k", "train") & words("gsm8k", "test")
    assert len(words("math", "train") & words("math", "test")) == 1
    # Spaces left out altogether, the key of deduplication finds one more of each.
    keys = {exact_key(p.question) for p in questions("dapo_17k", "train")}
    assert len({exact_key(p.question) for p in questions("amc23", "test")} & keys) == 6
    assert len({exact_key(p.question) for p in questions("math", "test")} & keys) == 972


@real
def test_every_cmath_question_that_leaks_into_training_is_caught() -> None:
    cmath = questions("cmath", "dev")
    index = EvaluationIndex(10)
    for problem in cmath:
        index.add_problem(problem)
    leaked = [p.with_(id=f"leak/{p.id}", question=f"题：{p.question} 请作答。", split="rl") for p in cmath]
    assert sum(hit is not None for _, hit in find_hits(leaked, index)) == len(cmath) == 600
    assert sum(len(p.question.split()) < 10 for p in cmath) == 600  # white space would have let them through


def test_every_file_has_a_link_of_its_own_and_the_same_file_one(tmp_path: Path) -> None:
    def source(name: str, folder: str) -> rooms.ResolvedSource:
        file = tmp_path / folder / "rows.jsonl"
        write(file, GSM8K)
        return rooms.ResolvedSource(name, "train", "MIT", files=(file,))

    first, second, again = source("a/b", "1"), source("a:b", "2"), source("a_b", "1")
    links = rooms.of_sources([first, second, again])
    assert links == {"a_b-train/rows.jsonl": first.files[0], "a_b-train_/rows.jsonl": second.files[0]}
