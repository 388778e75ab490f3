"""Sections of the data stages: curate, difficulty, mix."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from mathrl.params.generators import Generated, GeneratedSource, SplitName
from mathrl.params.section import Section

Rule = Literal[
    "proof",
    "parts",
    "yes_no",
    "choice",
    "link",
    "html",
    "figure",
    "figure_described",
    "context",
    "leak",
    "solution_disagrees",
    "unparseable",
    "majority",
]


class Quality(Section):
    """Rules for training rows; the report counts the rows of every rule and shows examples."""

    drop: tuple[Rule, ...] = Field(
        tuple(rule for rule in get_args(Rule) if rule not in ("figure_described", "majority")),
        description="Rules whose rows leave the sft and rl splits; the others are only reported.",
    )
    samples: str | None = Field(
        None, description="File of a policy's graded samples (samples.jsonl, responses.jsonl), for the rule majority."
    )
    min_votes: int = Field(4, ge=2, description="majority: answers of the policy that a problem needs.")
    majority_share: float = Field(
        0.75, gt=0.5, le=1, description="majority: share of the policy's answers that agree with each other."
    )

    @model_validator(mode="after")
    def _has_samples(self) -> "Quality":
        if "majority" in self.drop and self.samples is None:
            raise ValueError("drop has majority, which needs samples: name a file of a policy's samples")
        return self


class RowSource(Section):
    """What files and hub data sets share: the names of their fields, and which rows to keep."""

    name: str = Field(min_length=1, description="Name of the source in reports and mixtures.")
    format: Literal["fields", "rlinf", "verl", "multiple_choice"] = Field(
        "fields",
        description="fields: the keys below name the columns; rlinf, verl, multiple_choice: rows in that format.",
    )
    prompt_key: str = Field(
        "question",
        description="Field with the question, as text or as a chat list; instruction+input joins two fields (one "
        "that is empty in a row is left out), 0.value and messages.-1.content read inside one.",
    )
    answer_key: str | None = Field("answer", description="Field with the answer; null: taken from the solution.")
    solution_key: str | None = Field(None, description="Field with the worked solution.")
    id_key: str | None = Field(None, description="Field with the row's id; null: file name and row number.")
    level_key: str | None = Field(None, description="Field with the difficulty level.")
    subject_key: str | None = Field(None, description="Field with the subject.")
    pass_rate_key: str | None = Field(
        None, description="Field with a pass rate that the source measured: 0.625, 62.5% or 5/8."
    )
    task_key: str | None = Field(
        None, description="Field with the task, which chooses a route of prompt.routes and reward.routes."
    )
    choices_key: str | None = Field(
        None,
        description="Field with the options of a multiple-choice question; the answer is then a letter, a number from "
        "0 or the text of one.",
    )
    answer_rule: Literal["field", "hash", "boxed", "answer_tag", "sentence", "none"] = Field(
        "field",
        description="field: the answer as it is; hash, boxed, answer_tag, sentence (The answer is 5): from a text; "
        "none: the rows have no answer, for the reward part majority (TTRL).",
    )
    keep: dict[str, Any] = Field(
        default_factory=dict,
        description="Keep only rows with these values, such as has_image: false or meta.lang: [en, de].",
    )
    one_template: bool = Field(
        False,
        description="The rows are written from one template: they share its words and all differ. As problems of one "
        "generator they are compared with the test problems of other sources alone (curate.decontaminate).",
    )
    limit: int | None = Field(None, ge=1, description="Maximum number of rows (seeded choice).")
    licence: str | None = Field(None, description="Licence, for the curation report.")

    split: SplitName = Field(description="Split that the rows go to.")

    def fills(self, split: SplitName) -> bool:
        """Whether the split gets rows of this source."""
        return self.split == split


class FileSource(RowSource):
    """Rows from local files: jsonl, ndjson, json, csv, tsv, parquet, arrow; text files also as .gz, .zst, .bz2, .xz."""

    type: Literal["file"] = "file"
    path: str = Field(min_length=1, description="A file, a folder of files, or a pattern such as shards/*.parquet.")


class HubSource(RowSource):
    """A Hugging Face data set, by hub id or by its name in the registry; local copies are used first."""

    type: Literal["hub"] = "hub"
    id: str = Field(min_length=1, description="Hub id, or a registry name: gsm8k, math, dapo_17k, …")
    subset: str | None = Field(None, description="Configuration (subset) of the data set on the hub.")
    hub_split: str = Field("train", description="Split of the data set on the hub.")
    revision: str | None = Field(None, description="Branch, tag or commit on the hub; null: the registry's, or main.")


Source = Annotated[Generated | FileSource | HubSource, Field(discriminator="type")]


class NearDuplicates(Section):
    """Near-duplicates by the shingles that two questions share."""

    ngram: int = Field(5, ge=1, description="Words per shingle.")
    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity from which two questions are near-duplicates."
    )
    same_numbers: bool = Field(
        True, description="Similar questions with different numbers or operators are reported as variants, not dropped."
    )


class Deduplicate(Section):
    """Which questions count as the same (docs/how_to/curation.md)."""

    exact: bool = Field(True, description="Drop questions that are equal after normalisation.")
    near: NearDuplicates | None = Field(None, description="Also drop near-duplicates.")


class Embedding(Section):
    """A second pass of decontamination: questions that mean the same as an evaluation question."""

    model: str = Field(description="Folder of a static embedding model in model2vec's format, or its hub id.")
    min_similarity: float = Field(
        0.95, gt=0, le=1, description="Drop a question whose cosine with an evaluation question is at least this."
    )
    same_numbers: bool = Field(
        True, description="Drop only a question with the same numbers; with other numbers it is another problem."
    )


class Decontaminate(Section):
    """Training texts that share n-grams with an evaluation text are dropped.

    DeepSeekMath's literal rule, by which one shared n-gram is enough, is `min_share: 0`.
    """

    against: tuple[SplitName, ...] = Field(("dev", "test"), description="Splits that training texts are compared with.")
    benchmarks: tuple[str, ...] = Field((), description="Benchmarks to compare with as well, by name: math, aime24, ….")
    files: tuple[str, ...] = Field((), description="Evaluation files to compare with as well (question, answer).")
    ngram: int = Field(10, ge=3, description="Length of a shared n-gram that counts as a hit, in words.")
    share: Literal["coverage", "words"] = Field(
        "coverage",
        description="Share of a hit. coverage: part of the training or evaluation text, the larger, in shared n-grams; "
        "words: shared distinct words over those of the text with fewer.",
    )
    min_share: float = Field(
        0.5, ge=0, le=1, description="Drop a hit whose share is at least this; 0: any shared n-gram (DeepSeekMath)."
    )
    decisions: str | None = Field(
        None,
        description="File of a person's decisions on doubtful hits (mathrl data decide), which overrule the share.",
    )
    embedding: Embedding | None = Field(
        None, description="Also drop questions that are similar by embeddings; null: n-grams alone."
    )
    within_generator: bool = Field(
        False,
        description="Also compare problems of one generator, or of a source with one_template, which share phrases and "
        "are all different.",
    )


class Curate(Section):
    """Problems from sources to disjoint splits."""

    data_folder: str | None = Field(None, description="Local folder with the files of named sources (or $MATHRL_DATA).")
    sources: tuple[Source, ...] = Field(min_length=1, description="Sources of the problems.")
    on_bad_row: Literal["stop", "reject"] = Field(
        "stop", description="stop: a bad row is an error; reject: it goes to rejected.jsonl with the reason."
    )
    deduplicate: Deduplicate = Deduplicate()
    quality: Quality | None = Field(
        None, description="Drop training rows that are not worth training on, by rules; null: check nothing."
    )
    decontaminate: Decontaminate | None = Field(
        Decontaminate(), description="Drop training texts that share n-grams with evaluation texts; null: keep all."
    )
    test_share: float = Field(
        0.0, ge=0, lt=1, description="Share of the rl rows moved to test when no source fills test."
    )
    dev_share: float = Field(0.0, ge=0, lt=1, description="Share of the rl rows moved to dev when no source fills dev.")
    sft_share: float = Field(0.0, ge=0, lt=1, description="Share of the rl rows moved to sft when no source fills sft.")

    def not_compared_within(self) -> frozenset[str]:
        """The sources whose problems are not compared with test problems of their own: one generator or template."""
        if self.decontaminate and self.decontaminate.within_generator:
            return frozenset()
        return frozenset(item.name for item in self.sources if item.type == "generated" or item.one_template)

    def fills(self, split: SplitName) -> bool:
        """Whether the split gets rows: from a source of its own, or as a share of the rl rows."""
        return any(source.fills(split) for source in self.sources) or bool(getattr(self, f"{split}_share", 0.0))

    @property
    def has_rows(self) -> bool:
        """Whether a source has rows of files or of the hub; generated problems have all that a stage asks for."""
        return any(not isinstance(source, GeneratedSource) for source in self.sources)

    @model_validator(mode="after")
    def _unique_names(self) -> "Curate":
        seen = [(s.name, s.split if not isinstance(s, GeneratedSource) else "") for s in self.sources]
        if len(set(seen)) < len(seen):
            raise ValueError("two sources have the same name and split; give each its own name")
        return self


class Difficulty(Section):
    """Pass rates of the SFT model on the rl split."""

    samples: int = Field(8, ge=8, description="Responses per problem; rl needs pass@8 before it starts.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; use rl.temperature.")
    max_problems: int | None = Field(
        None, ge=1, description="Maximum number of problems to measure (seeded choice); null: all."
    )
    max_tokens: int = Field(1024, ge=1, description="Maximum response length, in tokens.")


class Component(Section):
    """A component of the mixture."""

    source: str = Field(description="Name of a source, or * for all.")
    weight: float | None = Field(None, gt=0, description="Share of the mixture, relative to the other components.")
    count: int | None = Field(None, ge=1, description="Exact number of rows, instead of a weight.")
    epochs: int | None = Field(
        None,
        ge=1,
        description="Maximum repetitions per problem (default 1). Without weight or count: repeat every problem this "
        "often.",
    )
    cap: int | None = Field(None, ge=1, description="Maximum number of different problems per source (seeded choice).")
    band: tuple[float, float] | None = Field(
        None, description="Keep only problems with a pass rate within [low, high]."
    )

    @model_validator(mode="after")
    def _one_size(self) -> "Component":
        if self.weight is not None and self.count is not None:
            raise ValueError("give either weight or count")
        if self.weight is None and self.count is None and self.epochs is None:
            raise ValueError("give weight, count or epochs")
        if self.band and not 0 <= self.band[0] <= self.band[1] <= 1:
            raise ValueError("band is [low, high] with 0 <= low <= high <= 1")
        return self


class Mix(Section):
    """The RL training set."""

    components: tuple[Component, ...] = Field(min_length=1, description="Components of the mixture.")
    size: int | None = Field(None, ge=1, description="Number of rows; null: as many as the weights allow.")
    order: Literal["shuffled", "easy_to_hard"] = Field(
        "shuffled",
        description="Order of the rows; easy_to_hard: by pass rate, else by level; per pass over the problems.",
    )
