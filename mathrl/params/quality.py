"""Section `curate.quality`: which problems are worth training on."""

from typing import Literal, get_args

from pydantic import Field, model_validator

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
