"""All sections. A section is one file, params/<section>.yaml; a stage's section bears the stage's name."""

from pydantic import Field

from mathrl.params.data import Curate, Difficulty, Mix
from mathrl.params.evaluate import Evaluate, Register, Suite
from mathrl.params.health import Health
from mathrl.params.pages import Pages
from mathrl.params.preference import Dpo, RewardModel, Sample
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, Prompt, Reward, Run
from mathrl.params.section import Section
from mathrl.params.sweep import Sweep
from mathrl.params.train import Controls, Rl, Sft
from mathrl.params.training import Training

STAGES = ("curate", "sft", "difficulty", "mix", "rl", "evaluate", "register")

# Which sections a stage reads: the parameter dependencies in dvc.yaml, checked by a test. Those that are not
# in STAGES are steps of recipes, or stages beside the pipeline: the demo's controls, the pages.
READS: dict[str, tuple[str, ...]] = {
    "curate": ("run", "curate"),
    "sft": ("run", "model", "prompt", "training", "sft", "health"),
    "difficulty": ("run", "model", "prompt", "reward", "rollout", "difficulty"),
    "mix": ("run", "mix"),
    "rl": ("run", "model", "prompt", "reward", "rollout", "training", "rl", "health"),
    "evaluate": ("run", "model", "prompt", "rollout", "evaluate"),
    "register": ("register",),
    "base": ("run", "model"),
    "sample": ("run", "model", "prompt", "reward", "rollout", "sample"),
    "dpo": ("run", "model", "prompt", "training", "dpo"),
    "reward_model": ("run", "model", "prompt", "training", "reward_model"),
    "process_reward_model": ("run", "model", "prompt", "reward", "training", "reward_model"),
    "summary": ("run", "evaluate"),
    "pages": ("run", "pages"),
    "controls": ("run", "model", "prompt", "rollout", "training", "sft", "rl", "evaluate", "controls"),
}


class Params(Section):
    """Every parameter of a run."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    prompt: Prompt = Field(default_factory=Prompt)
    reward: Reward = Field(default_factory=Reward)
    rollout: Rollout = Field(default_factory=Rollout)
    training: Training = Field(default_factory=Training)
    curate: Curate
    sft: Sft = Field(default_factory=Sft)
    difficulty: Difficulty = Field(default_factory=Difficulty)
    mix: Mix
    rl: Rl = Field(default_factory=Rl)
    health: Health = Field(default_factory=Health)
    sample: Sample = Field(default_factory=Sample)
    dpo: Dpo = Field(default_factory=Dpo)
    reward_model: RewardModel = Field(default_factory=RewardModel)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    register_: Register = Field(default_factory=Register, alias="register")
    suite: Suite = Field(default_factory=Suite)
    pages: Pages = Field(default_factory=Pages)
    controls: Controls = Field(default_factory=Controls)
    sweep: Sweep = Field(default_factory=Sweep)
