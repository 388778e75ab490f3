"""Section of the pages flow: mathematical pages out of a corpus of texts, round by round."""

from pydantic import Field

from mathrl.params.section import Section


class Seeds(Section):
    """Texts whose class is known beforehand, from jsonl or jsonl.gz files."""

    files: tuple[str, ...] = Field((), description="Files; relative paths start at the checkout's top.")
    text_key: str = Field("text", description="Field with the text; solution for a problem set's solutions.")
    limit: int | None = Field(None, ge=1, description="Maximum number of texts (seeded choice).")


class PagesClean(Section):
    """What the kept pages must not contain: DeepSeekMath's rule, as in curate."""

    benchmarks: tuple[str, ...] = Field((), description="Evaluation sets by name: gsm8k, math, ….")
    files: tuple[str, ...] = Field((), description="Further evaluation files (question, answer, solution).")
    data_folder: str | None = Field(None, description="Folder of the named sets' files (or $MATHRL_DATA).")
    ngram: int = Field(10, ge=3, description="Length of a shared n-gram that counts as a hit, in words.")
    min_share: float = Field(
        0.0, ge=0, le=1, description="Minimum share of the smaller text's n-grams that are shared."
    )


class Pages(Section):
    """DeepSeekMath's loop (arXiv:2402.03300, section 2.1) on files of pages."""

    files: tuple[str, ...] = Field((), description="The pages: jsonl or jsonl.gz files.")
    text_key: str = Field("text", description="Field with the page's text.")
    url_key: str = Field("url", description="Field with its address; the host name is the domain.")
    label_key: str | None = Field(
        None, description="Field that says whether it is mathematics (true, false, or empty), for measuring."
    )
    positives: Seeds = Field(default=Seeds(), description="Mathematical texts.")
    negatives: Seeds = Field(default=Seeds(), description="Texts that are not mathematics.")
    random_negatives: int = Field(0, ge=0, description="Number of random pages used as additional negatives.")
    top_share: float = Field(0.1, gt=0, lt=1, description="Share of all pages that a round keeps.")
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
    ngram: int = Field(2, ge=1, le=3, description="Longest n-gram that the classifier uses, in words.")
    epochs: int = Field(20, ge=1, description="Training epochs of the classifier.")
    decontaminate: PagesClean | None = Field(
        PagesClean(), description="Drop pages that share n-grams with evaluation texts; null: keep all."
    )
