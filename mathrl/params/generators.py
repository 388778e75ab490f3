"""Sources of generated problems: a class per generator with its options. mathrl/generators draws the problems."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mathrl.params.section import Options, Section

SplitName = Literal["sft", "rl", "dev", "test"]


def different(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Raises ValueError: a level is listed twice."""
    if len(set(levels)) < len(levels):
        raise ValueError("a level is listed twice; list each once")
    return levels


Levels = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1), AfterValidator(different)]
OneToFive = Annotated[tuple[Annotated[int, Field(ge=1, le=5)], ...], Field(min_length=1), AfterValidator(different)]
OneToThree = Annotated[tuple[Annotated[int, Field(ge=1, le=3)], ...], Field(min_length=1), AfterValidator(different)]


class GeneratedSource(Section):
    """Problems of a seeded generator: no file, no download."""

    type: Literal["generated"] = "generated"
    name: str = Field(min_length=1, description="Name of the source in reports and mixtures.")
    generator: str
    counts: dict[SplitName, Annotated[int, Field(ge=0)]] = Field(description="Number of problems per split.")
    options: Options

    def fills(self, split: SplitName) -> bool:
        """Whether the split gets problems of this source."""
        return self.counts.get(split, 0) > 0


class ChainOptions(Options):
    """Level: number of operations. Every intermediate result is between 0 and largest_result."""

    steps: Levels = Field((2, 3, 4, 5, 6), description="Numbers of operations per problem; each number is a level.")
    operations: tuple[Literal["+", "-", "*"], ...] = Field(("+", "-", "*"), min_length=1, description="Operators.")
    largest_number: int = Field(9, ge=1, description="Largest operand; the smallest is 1.")
    largest_result: int = Field(40, ge=1, description="Largest intermediate result.")
    notation: Literal["words", "brackets", "bare"] = Field(
        "words",
        description="How the question says that it is worked from left to right: words: in a sentence; brackets: by "
        "brackets where the usual precedence differs, (7+5-3)*4=; bare: not at all, 7+5-3*4=, for a model that learns "
        "this notation from worked solutions.",
    )
    working: Literal["steps", "rest"] = Field(
        "steps",
        description="Form of the worked solution: steps: every operation (7+5=12;12-3=9;9*4=36); rest: the expression "
        "that remains after each (12-3*4;9*4;36).",
    )


class ChainSource(GeneratedSource):
    """Chained arithmetic, evaluated strictly from left to right: 7+5-3*4= is 36."""

    generator: Literal["chain"]
    options: ChainOptions = ChainOptions()


class CountdownGameOptions(Options):
    """Level: how many numbers a problem has."""

    numbers: Levels = Field((3, 4), description="Counts of numbers per problem; each count is a level.")
    largest_number: int = Field(20, ge=2, description="Largest number of a problem; the smallest is 1.")
    largest_target: int = Field(100, ge=1, description="Largest target; the smallest is 1.")


class CountdownSource(GeneratedSource):
    """Reach the target with + - * /, using each number once."""

    generator: Literal["countdown"]
    options: CountdownGameOptions = CountdownGameOptions()


class FractionsOptions(Options):
    """Level 1: a product or quotient; 2: a sum; 3: a percentage; 4: percentage change; 5: three fractions."""

    kinds: OneToFive = Field((1, 2, 3, 4, 5), description="Levels to draw.")
    largest_denominator: int = Field(30, ge=4, description="Largest denominator; the smallest is 2.")


class FractionsSource(GeneratedSource):
    """Fractions and percentages."""

    generator: Literal["fractions"]
    options: FractionsOptions = FractionsOptions()


class LinearEquationOptions(Options):
    """Level 1: ax + b = c; 2: unknown on both sides; 3: brackets; 4: two unknowns; 5: a rational solution."""

    forms: OneToFive = Field((1, 2, 3, 4, 5), description="Levels to draw.")
    largest_number: int = Field(20, ge=3, description="Largest absolute value of coefficients and solutions.")


class LinearEquationSource(GeneratedSource):
    """Linear equations in one unknown, and systems of two."""

    generator: Literal["linear_equation"]
    options: LinearEquationOptions = LinearEquationOptions()


class ProductOptions(Options):
    """Level 1: two numbers of two digits; 2: one of three digits and one of two; 3: a square or cube."""

    kinds: OneToThree = Field((1, 2, 3), description="Levels to draw.")
    calls: float = Field(
        0.5, ge=0, le=1, description="Share of worked solutions that call Python instead of giving the result."
    )


class ProductSource(GeneratedSource):
    """Products and powers, which a small model cannot compute in its head: 47*83=."""

    generator: Literal["product"]
    options: ProductOptions = ProductOptions()


GymName = Literal[
    "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes", "decimal_chain_sum", "dice",
    "gcd", "lcm", "leg_counting", "letter_counting", "maze", "products", "rotten_oranges", "simple_equations",
    "simple_geometry",
]  # fmt: skip


class GymTask(Section):
    """A task of reasoning-gym that has one exact answer."""

    name: GymName = Field(description="The library's name of the task.")
    options: dict[str, Any] = Field({}, description="The task's own options, such as min_number.")


class ReasoningGymOptions(Options):
    """Level n: the n-th of `tasks`."""

    tasks: Annotated[tuple[GymTask, ...], Field(min_length=1)] = Field(
        (GymTask(name="chain_sum"), GymTask(name="simple_equations")),
        description="Tasks, the easiest first; one may stand here several times with harder options.",
    )


class ReasoningGymSource(GeneratedSource):
    """Tasks of the library reasoning-gym, which is installed apart; without worked solutions."""

    generator: Literal["reasoning_gym"]
    options: ReasoningGymOptions = ReasoningGymOptions()


StoryKind = Literal["rates", "units", "measures", "time", "money", "comparisons", "sharing", "percent", "change"]
StoryLanguage = Literal["en", "de", "fr", "es"]


class WordProblemOptions(Options):
    """Level: number of steps of the worked solution. All quantities are positive integers."""

    steps: Levels = Field((1, 2, 3, 4, 5), description="Numbers of steps per problem; each number is a level.")
    kinds: tuple[StoryKind, ...] | None = Field(None, min_length=1, description="Kinds of problems; null: all.")
    structures: tuple[str, ...] | None = Field(
        None, min_length=1, description="Structures by name, as in extra.structure; null: all."
    )
    without_structures: tuple[str, ...] = Field(
        (), description="Structures to leave out, such as those that are held out for the test split."
    )
    languages: tuple[StoryLanguage, ...] = Field(
        ("en",), min_length=1, description="Languages, by their ISO 639-1 codes; drawn evenly."
    )
    distractors: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of problems with a sentence whose number has nothing to do with the answer.",
    )


class WordProblemSource(GeneratedSource):
    """Word problems: rates, units, measures, time, money, comparisons, sharing, percentages, changes."""

    generator: Literal["word_problem"]
    options: WordProblemOptions = WordProblemOptions()


class StoryOptions(Options):
    """Level: number of steps of the worked solution. All quantities are positive integers."""

    steps: Levels = Field((2, 3, 4), description="Numbers of steps per problem; each number is a level.")
    templates: Literal["all", "training", "held_out"] = Field(
        "all",
        description="Which templates (sentences in their order): held_out: those in which two neighbouring sentences "
        "never follow one another in the others; training: the others.",
    )
    largest_result: int = Field(99, ge=20, description="Largest result of a step.")


class StorySource(GeneratedSource):
    """Stories of events that change a number, told in sentences that can be held out in pairs."""

    generator: Literal["story"]
    options: StoryOptions = StoryOptions()


Generated = Annotated[
    ChainSource
    | CountdownSource
    | FractionsSource
    | LinearEquationSource
    | ProductSource
    | ReasoningGymSource
    | StorySource
    | WordProblemSource,
    Field(discriminator="generator"),
]
