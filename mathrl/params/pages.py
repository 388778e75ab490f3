"""Section of the pages flow: mathematical pages out of a corpus of texts, round by round."""

from typing import Annotated, Literal

from pydantic import Field

from mathrl.params.section import Section


class LinearClassifier(Section):
    """Logistic regression on hashed n-grams (scikit-learn), trained in each round."""

    type: Literal["linear"] = "linear"
    ngram: int = Field(2, ge=1, le=3, description="Longest n-gram that the classifier uses, in words.")
    epochs: int = Field(20, ge=1, description="Training epochs of the classifier.")


class FastTextClassifier(Section):
    """A trained fastText model, as in datatrove's filter; there is one round, since no round trains it."""

    type: Literal["fasttext"]
    model: str = Field(description="Model file of fastText (.bin or .ftz), of a source that you trust.")
    label: str = Field("math", description="The model's label for mathematics, without the prefix __label__.")


PageClassifier = Annotated[LinearClassifier | FastTextClassifier, Field(discriminator="type")]


class LocalExecutor(Section):
    """Processes of this machine."""

    type: Literal["local"] = "local"
    workers: int | None = Field(None, ge=1, description="Files processed at the same time; null: one per core.")


class SlurmExecutor(Section):
    """Array jobs of Slurm, submitted with sbatch; the stage waits for them.

    All machines need the same checkout, environment and state folder.
    """

    type: Literal["slurm"]
    workers: int | None = Field(None, ge=1, description="Jobs that run at the same time; null: no limit.")
    files_per_job: int = Field(1, ge=1, description="Files of pages that one job processes.")
    cpus_per_job: int = Field(1, ge=1, description="Processor cores per job.")
    gb_per_cpu: int = Field(2, ge=1, description="Memory per core in GB.")
    partition: str = Field(description="Slurm partition.")
    time: str = Field("24:00:00", description="Slurm time limit of a job.")
    qos: str | None = Field(None, description="Slurm quality of service.")
    sbatch: dict[str, str] = Field(default_factory=dict, description="Further options of sbatch, such as account.")


Executor = Annotated[LocalExecutor | SlurmExecutor, Field(discriminator="type")]


class Seeds(Section):
    """Labelled texts to train the classifier on."""

    files: tuple[str, ...] = Field(
        (), description="Files with one text per row; relative paths start at the top of the project."
    )
    text_key: str = Field("text", description="Field with the text, such as solution for a problem set.")
    limit: int | None = Field(None, ge=1, description="Maximum number of texts (seeded choice).")


class PagesClean(Section):
    """Decontamination of the kept pages by DeepSeekMath's rule, as in curate."""

    benchmarks: tuple[str, ...] = Field(
        ("gsm8k", "math"), description="Benchmarks to compare with, by name: gsm8k, math, …."
    )
    files: tuple[str, ...] = Field((), description="Evaluation files to compare with as well, as in curate.")
    data_folder: str | None = Field(None, description="Local folder with the benchmarks' files (or $MATHRL_DATA).")
    ngram: int = Field(10, ge=3, description="Length of a shared n-gram that counts as a hit, in words.")
    min_share: float = Field(
        0.0, ge=0, le=1, description="Drop a hit only if the texts share this part of the shorter one's distinct words."
    )


class NearPages(Section):
    """Near-duplicates by datatrove's MinHash: pages that agree in all hashes of one bucket are one cluster."""

    ngram: int = Field(5, ge=1, description="Length of the n-grams that pages are compared by, in words.")
    buckets: int = Field(14, ge=1, description="Number of buckets.")
    hashes_per_bucket: int = Field(
        8, ge=1, description="Hashes per bucket; 14 buckets of 8 find pairs from a similarity of about 0.72."
    )


class Pages(Section):
    """DeepSeekMath's loop (arXiv:2402.03300, section 2.1) on files of pages."""

    files: tuple[str, ...] = Field(
        (), description="Files, folders or patterns with the pages: jsonl, parquet, … (as in curate), WARC or WET."
    )
    executor: Executor = Field(LocalExecutor(), description="Where the files are processed: local or slurm.")
    near: NearPages | None = Field(None, description="Keep one page of each cluster of near-duplicates; null: all.")
    text_key: str = Field("text", description="Field with the page's text.")
    url_key: str = Field("url", description="Field with the page's URL; its host name is the domain.")
    label_key: str | None = Field(
        None, description="Field that labels a page as mathematics (true, false, or empty), to measure the classifier."
    )
    positives: Seeds = Field(default=Seeds(), description="Texts that are mathematics.")
    negatives: Seeds = Field(default=Seeds(), description="Texts that are not mathematics.")
    random_negatives: int = Field(0, ge=0, description="Number of random pages used as additional negatives.")
    top_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of all pages that a round collects; null: the pages with the highest expected F1, by "
        "calibrated probabilities.",
    )
    page_negatives: int = Field(
        2000,
        ge=0,
        description="Number of random uncollected pages of other than promoted domains that later rounds use as "
        "additional negatives.",
    )
    page_positives: int = Field(
        500_000, ge=1, description="Maximum number of pages of promoted domains that become positives (seeded choice)."
    )
    rounds: int = Field(4, ge=1, description="Maximum number of rounds.")
    stop_new_share: float = Field(
        0.02, ge=0, lt=1, description="Stop when less than this share of a round's pages is new."
    )
    domain_share: float = Field(
        0.1, ge=0, lt=1, description="A domain is promoted when more than this share of it was collected."
    )
    path_prefixes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Paths to which a promoted domain is restricted, by host: {host: [/maths]}."
    )
    held_out_share: float = Field(
        0.2, gt=0, lt=1, description="Share of labelled pages held out to measure the classifier."
    )
    classifier: PageClassifier = Field(LinearClassifier(), description="What scores the pages: linear or fasttext.")
    decontaminate: PagesClean | None = Field(
        PagesClean(), description="Drop pages that share n-grams with evaluation texts; null: keep all."
    )
