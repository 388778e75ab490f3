"""Time and memory of the pages loop: `python benchmarks/pages_scale.py CORPUS [--copies 1 10] [--workers 1]`.

CORPUS is a folder that pages_corpus.py wrote. Its pages are copied, each copy in a file of its own with a further word
per page, and go through reading, features and the rounds, without decontamination. Each size runs in a process of its
own. Processor seconds and the peak of memory are those of all processes together (curate_scale.py).
"""

import argparse
import multiprocessing
import tempfile
from pathlib import Path

from curate_scale import Meter

from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.page_files import read_seeds
from mathrl.corpus.rounds import collect
from mathrl.params.pages import Pages


def one(corpus: Path, copies: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{copy}.jsonl" for copy in range(copies)]
        for copy, file in enumerate(files):
            rows = read_jsonl(corpus / "pages.jsonl")
            write_jsonl(file, (row | {"text": f"{row['text']} copy{copy}"} for row in rows))
        params = Pages.model_validate({
            "files": [str(folder)],
            "label_key": "math",
            "executor": {"type": "local", "workers": workers},
            "positives": {"files": [str(corpus / "positives.jsonl")]},
            "negatives": {"files": [str(corpus / "negatives.jsonl")]},
        })  # fmt: skip
        meter = Meter()
        seeds = [read_seeds(getattr(params, kind), kind, 0) for kind in ("positives", "negatives")]
        pages = Corpus(files, params, folder / "state")
        best = max(collect(pages, seeds[0], seeds[1], params, 0).rounds, key=lambda each: each.f1)
        seconds, peak = meter.stop()
        print(f"{len(pages):>9,} {workers:>7} {seconds:>8.1f} {peak:>9,.0f} {best.f1:>6.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    print(f"{'pages':>9} {'workers':>7} {'cpu s':>8} {'peak MiB':>9} {'F1':>6}", flush=True)
    for copies in given.copies:
        process = multiprocessing.get_context("spawn").Process(target=one, args=(given.corpus, copies, given.workers))
        process.start()
        process.join()
