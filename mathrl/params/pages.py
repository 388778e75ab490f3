"""Section of the pages flow: mathematical pages out of a corpus of texts, round by round."""

from pydantic import Field

from mathrl.params.section import Section


class Seeds(Section):
    """Texts whose class is known beforehand, from jsonl or jsonl.gz files."""

    files: tuple[str, ...] = Field((), description="Files; relative paths start at the checkout's top.")
    text_key: str = Field("text", description="Field with the text; solution for a problem set's solutions.")
    limit: int | None = Field(None, ge=1, description="At most so many, seeded choice.")


class PagesClean(Section):
    """What the kept pages must not contain: DeepSeekMath's rule, as in curate."""

    benchmarks: tuple[str, ...] = Field((), description="Evaluation sets by name: gsm8k, math, ….")
    files: tuple[str, ...] = Field((), description="Further evaluation files (question, answer, solution).")
    data_folder: str | None = Field(None, description="Folder of the named sets' files (or $MATHRL_DATA).")
    ngram: int = Field(10, ge=3, description="Grams in a row that count as a hit.")
    min_share: float = Field(0.0, ge=0, le=1, description="Shared grams over the smaller text's, at least.")


class Pages(Section):
    """DeepSeekMath's loop (arXiv:2402.03300, section 2.1) on files of pages."""

    files: tuple[str, ...] = Field((), description="The pages: jsonl or jsonl.gz files.")
    text_key: str = Field("text", description="Field with the page's text.")
    url_key: str = Field("url", description="Field with its address; the host name is the domain.")
    label_key: str | None = Field(
        None, description="Field that says whether it is mathematics (true, false, or empty), for measuring."
    )
    positives: Seeds = Field(default=Seeds(), description="Texts of mathematics.")
    negatives: Seeds = Field(default=Seeds(), description="Other texts.")
    random_negatives: int = Field(0, ge=0, description="So many pages, by chance, as negatives too.")
    top_share: float = Field(0.1, gt=0, lt=1, description="Share of all pages that a round keeps.")
    rounds: int = Field(4, ge=1, description="At most so many rounds.")
    stop_new_share: float = Field(
        0.02, ge=0, lt=1, description="Stop when less than this share of a round's pages is new."
    )
    domain_share: float = Field(
        0.1, ge=0, lt=1, description="A domain is promoted when more than this share of it was collected."
    )
    path_prefixes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Of a promoted domain only pages under these paths become positives: {host: [/maths]}.",
    )
    held_out_share: float = Field(
        0.2, gt=0, lt=1, description="Share of the labelled pages that is never trained on, only measured."
    )
    ngram: int = Field(2, ge=1, le=3, description="The classifier sees 1 to so many grams in a row.")
    epochs: int = Field(20, ge=1, description="Passes of the classifier over its texts.")
    decontaminate: PagesClean | None = Field(
        PagesClean(), description="Drop pages that evaluation texts share; empty: none."
    )
