"""The simulated run against cases by hand, and against published measurements."""

from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.simulate import load_setup
from mathrl.core.errors import UserError
from mathrl.params.simulate import Lengths, Sampler, Simulation, Trainer
from mathrl.trainers.simulate import generate, response_lengths, simulate, train_seconds

ROOT = Path(__file__).parents[2]


def setup(**changes: Any) -> Simulation:
    sampler = Sampler(step_ms=1000, sequence_ms=1000, concurrency=4)
    given = {
        "gpus": 2, "sampler_gpus": 1, "responses": 4,
        "lengths": Lengths(mean=10, spread=0, limit=100, prompt=0),
        "sampler": sampler, "trainer": Trainer(tokens_per_second=4), "sync_seconds": 1.0, "steps": 6,
    }  # fmt: skip
    return Simulation(**(given | changes))


def test_an_engine_by_hand() -> None:
    # Two of 2 and 4 tokens, 1 s + 1 s a sequence: 2 tokens at 3 s, then 2 at 2 s.
    assert generate(setup(), [2, 4], 1) == (pytest.approx(10), pytest.approx(1))
    # One at a time: 2 x 2 s + 4 x 2 s. On two engines: the longer one, the other idle half of the time.
    alone = setup(sampler=Sampler(step_ms=1000, sequence_ms=1000, concurrency=1))
    assert generate(alone, [2, 4], 1)[0] == pytest.approx(12)
    assert generate(alone, [2, 4], 2) == (pytest.approx(8), pytest.approx(0.75))
    # A third joins when the first has ended: 2 tokens at 3 s; then 2 more at 3 s, and the third ends too.
    two = setup(sampler=Sampler(step_ms=1000, sequence_ms=1000, concurrency=2))
    assert generate(two, [2, 4, 2], 1)[0] == pytest.approx(12)


def test_colocated_and_one_step_ahead_by_hand() -> None:
    # Colocated: two engines with two sequences each, 10 tokens at 3 s; 40 tokens at 2 x 4 a second; sync.
    assert simulate(setup(), "colocated").step_seconds == pytest.approx(30 + 5 + 1)
    # Apart: four sequences at 5 s; training takes 10 s meanwhile.
    ahead = simulate(setup(), "one step ahead")
    assert ahead.step_seconds == pytest.approx(50 + 1) and ahead.waiting == pytest.approx(40)
    slow = setup(trainer=Trainer(tokens_per_second=0.5, logprob_tokens_per_second=1))
    assert simulate(slow, "one step ahead").step_seconds == pytest.approx(80 + 1)
    assert train_seconds(slow, 40, 1, scored=True) == pytest.approx(80 + 40)


def test_asynchronous_is_bound_by_the_slower_side_and_by_staleness() -> None:
    slow_training = setup(trainer=Trainer(tokens_per_second=0.5))
    found = simulate(slow_training, "asynchronous")
    assert found.step_seconds == pytest.approx(80 + 1) and found.waiting == pytest.approx(1)
    # Nothing is begun ahead and nothing interrupted: sample 50 s, train 10 s, send 1 s, one after the other.
    strict = simulate(setup(staleness=0, interruptible=False), "asynchronous")
    assert strict.step_seconds == pytest.approx(50 + 10 + 1) and strict.staleness == 0
    loose = simulate(setup(staleness=4), "asynchronous")
    assert loose.step_seconds < strict.step_seconds and loose.staleness <= 5


def test_interruption_and_long_tails() -> None:
    tails = Lengths(mean=50, spread=1.0, limit=1000, prompt=0)
    sampler = Sampler(step_ms=10, sequence_ms=0.1, concurrency=64)
    many = {
        "responses": 256, "lengths": tails, "sampler": sampler, "gpus": 8, "sampler_gpus": 4, "staleness": 2,
        "trainer": Trainer(tokens_per_second=4000),
    }  # fmt: skip
    together, apart = simulate(setup(**many), "colocated"), simulate(setup(**many), "asynchronous")
    assert apart.step_seconds < together.step_seconds, "the tail is hidden"
    waiting = simulate(setup(**many, interruptible=False), "asynchronous")
    assert waiting.step_seconds > apart.step_seconds
    lengths = response_lengths(setup(**many))
    drawn = [next(lengths) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(50, rel=0.05) and max(drawn) <= 1000


@pytest.mark.parametrize(
    "name,mode,published,within",
    [
        ("verl-7b-128", "colocated", 356, 0.15),
        ("verl-7b-128", "asynchronous", 151, 0.10),
        ("areal-1.5b-128", "colocated", 148, 0.15),
        ("areal-1.5b-128", "asynchronous", 53, 0.25),
        ("rlinf-1.5b-128", "colocated", 346, 0.10),
    ],
)
def test_published_steps(name: str, mode: Any, published: float, within: float, monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    given = load_setup(name).model_copy(update={"steps": 3})
    assert simulate(given, mode).step_seconds == pytest.approx(published, rel=within)


def test_a_wrong_set_up_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match="did you mean verl-7b-128"):
        load_setup("verl-7b")
    file = tmp_path / "mine.yaml"
    file.write_text("gpus: 2\nresponses: 8\nlengths: {mean: 10, limit: 20}\nsampler: {step_ms: 1}\n")
    with pytest.raises(UserError, match=r"sampler\.sequence_ms: Field required; trainer: Field required"):
        load_setup(str(file))
