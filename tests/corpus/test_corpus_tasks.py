"""The corpus loop's tasks: the same bytes by any number of workers and under Slurm, resumed, of web archives."""

import gzip
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import write_jsonl
from mathrl.corpus import page_files
from mathrl.corpus.classifier import Models
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.page_files import BUCKETS
from mathrl.params.pages import Pages

NEAR = {"ngram": 3, "buckets": 2, "hashes_per_bucket": 2}
WORDS = "sum add plus equals number count garden river tea letter winter harbour engine wheel brake piston".split()


def sentence(number: int) -> str:
    """Thirty words; no two sentences share a run of three."""
    rng = np.random.default_rng(number)
    return " ".join(f"{WORDS[i]}{number}" for i in rng.integers(0, len(WORDS), 30))


def write(file: Path, numbers: Sequence[int]) -> Path:
    write_jsonl(file, ({"text": sentence(n), "url": f"https://h{n % 3}.example/{n}", "n": n} for n in numbers))
    return file


def pages(**values: Any) -> Pages:
    return Pages.model_validate({"files": ["p.jsonl"], **values})


def contents(corpus: Corpus) -> list[Any]:
    """All that the rounds may ask of a corpus."""
    numbers = range(len(corpus))
    weights = np.zeros((1, BUCKETS))
    weights[0, ::3] = 1.0
    scores = corpus.score(Models(weights, np.array([0.5])), 1)
    rows = [corpus[i].to_line() for i in numbers]
    return [rows, corpus.features(numbers).toarray().nonzero()[1].tolist(), scores.tobytes(), corpus.hosts.tolist()]


def test_the_bytes_do_not_depend_on_the_number_of_workers_and_one_page_per_cluster_stays(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.jsonl", [1, 2, 3]),
        write(tmp_path / "b.jsonl", []),
        write(tmp_path / "c.jsonl", [4, 2, 5, 4, 2]),  # 2 three times, 4 twice
    ]

    def made(workers: int) -> Corpus:
        how = pages(near=NEAR, executor={"type": "local", "workers": workers})
        return Corpus(files, how, tmp_path / str(workers))

    one = made(1)
    assert sorted(one[i].row["n"] for i in range(len(one))) == [1, 2, 3, 4, 5] and one.stored == 8
    assert contents(one) == contents(made(3))
    everything = Corpus(files, pages(), tmp_path / "all")
    assert [everything[i].row["n"] for i in range(8)] == [1, 2, 3, 4, 2, 5, 4, 2]
    wanted = [6, 0, 7, 0]
    assert (everything.features(wanted) != everything.features(range(8))[wanted]).nnz == 0


def test_a_run_that_failed_goes_on_after_the_last_complete_file(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", [1, 2]), write(tmp_path / "b.jsonl", [3])]
    with files[1].open("a") as stream:
        stream.write('{"text": 7}\n')
    state, one = tmp_path / "state", pages(executor={"type": "local", "workers": 1})
    with pytest.raises(UserError, match=r"b.jsonl, line 2, field text: expected text, found 7"):
        Corpus(files, one, state)
    write(files[1], [3, 4])
    files[0].unlink()  # it is not read again
    corpus = Corpus(files, one, state)
    assert [corpus[i].row["n"] for i in range(4)] == [1, 2, 3, 4]


SBATCH = """#!/bin/bash
for argument; do script=$argument; done
echo "$*" >> "$SBATCH_LOG"; grep '^#SBATCH' "$script" >> "$SBATCH_LOG"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
echo "Submitted batch job 1"
for task in $(seq 0 "$last"); do SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=node1 bash "$script" >&2 || exit 1; done
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done\nexec "$@"\n'


def test_slurm_gets_jobs_that_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Slurm: `sbatch` runs the tasks of the script that it gets one after the other, and waits."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {"sbatch": SBATCH, "srun": SRUN, "scontrol": "#!/bin/bash\necho node1\n"}.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SBATCH_LOG", str(tmp_path / "log"))
    files = [write(tmp_path / "a.jsonl", [1, 2])]
    slurm = {"type": "slurm", "partition": "cpu", "workers": 7, "gb_per_cpu": 3, "sbatch": {"account": "maths"}}
    there = Corpus(files, pages(executor=slurm), tmp_path / "slurm")
    here = Corpus(files, pages(), tmp_path / "local")
    assert [there[i] for i in range(2)] == [here[i] for i in range(2)]
    log = (tmp_path / "log").read_text()
    for option in ("partition=cpu", "array=0-0%7", "mem-per-cpu=3G", "account=maths", "wait", "time=24:00:00"):
        assert f"#SBATCH --{option}\n" in log

    with (tmp_path / "b.jsonl").open("w") as stream:
        stream.write('{"url": "https://a/b"}\n')
    with pytest.raises(UserError, match=r"b.jsonl, line 1: no field text"):
        Corpus([tmp_path / "b.jsonl"], pages(executor=slurm), tmp_path / "bad")
    (programs / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(UserError, match=r"sbatch failed .*sbatch"):
        Corpus(files, pages(executor=slurm), tmp_path / "none")


PARAGRAPH = "Let x be a positive integer and let y be the square of x, so that the sum x + y is even for every x. "
HTML = f"<html><head><title>T</title></head><body><nav>Home</nav><article><p>{PARAGRAPH * 4}</p></article>"


def test_web_archives_are_read_without_markup(tmp_path: Path) -> None:
    pytest.importorskip("magic")
    pytest.importorskip("trafilatura")
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    def record(writer: WARCWriter, url: str, content: str, kind: str) -> None:
        http = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
        payload = {"warc_content_type": "text/plain"} if kind == "conversion" else {"http_headers": http}
        writer.write_record(writer.create_warc_record(url, kind, payload=io.BytesIO(content.encode()), **payload))

    with (tmp_path / "crawl.warc.gz").open("wb") as stream:
        writer = WARCWriter(stream, gzip=True)
        record(writer, "https://algebra.example/squares", HTML, "response")
        record(writer, "https://www.empty.example/", "<html><body></body></html>", "response")
    with gzip.open(tmp_path / "text.warc.wet.gz", "wb") as packed:
        record(WARCWriter(packed, gzip=False), "https://tea.example/x", PARAGRAPH, "conversion")
    files = page_files.page_files([str(tmp_path)], "files")
    assert [file.name for file in files] == ["crawl.warc.gz", "text.warc.wet.gz"]
    corpus = Corpus(files, pages(text_key="body"), tmp_path / "state")
    first, second = corpus[0], corpus[1]
    assert len(corpus) == 2 and first.host == "algebra.example" and first.path == "/squares"
    assert first.text.startswith(PARAGRAPH.strip()) and "<" not in first.text and "Home" not in first.text
    assert first.row["url"] == "https://algebra.example/squares" and first.where.startswith(
        "crawl.warc.gz, record <urn"
    )
    assert second.text.strip() == PARAGRAPH.strip()


def test_a_folder_of_pages_is_read_whole_archives_beside_rows_and_through_links(tmp_path: Path) -> None:
    names = ["corpus/a.jsonl", "corpus/b.warc.gz", "disk/c.wet", "disk/d.jsonl"]
    for file in (tmp_path / name for name in names):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "corpus" / "more").symlink_to(tmp_path / "disk")
    expected = ["a.jsonl", "b.warc.gz", "c.wet", "d.jsonl"]
    for path in ("corpus", "corpus/**/*"):
        assert [file.name for file in page_files.page_files([str(tmp_path / path)], "files")] == expected
    with pytest.raises(UserError, match=r"unknown format; known: .*\.warc"):
        (tmp_path / "a.txt").touch()
        page_files.page_files([str(tmp_path / "a.txt")], "files")


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_files, "CRAWL_PACKAGES", {"no_such_module": "no-such-package"})
    page_files.check_readers([tmp_path / "a.jsonl"])
    with pytest.raises(UserError, match=r"web archives, but no-such-package cannot be found: .* 'mathrl\[warc\]'"):
        page_files.check_readers([tmp_path / "a.warc.gz"])
    with pytest.raises(UserError, match=r"a.warc: a web archive holds pages and no seeds"):
        list(page_files.rows_of(tmp_path / "a.warc"))
    (tmp_path / "p.txt").write_text("x")
    with pytest.raises(UserError, match=r"params/pages.yaml: files: .*p.txt: unknown format; known: .jsonl"):
        page_files.page_files([str(tmp_path / "p.txt")], "files")
