"""A control of recipe tool-use: the trained model with a tool whose numbers are one too large.

    P=pipelines/recipes/tool-use; python benchmarks/wrong_tool.py $P/rl/model $P/products/splits/test.jsonl

A model that takes its answers from the tool says the wrong number; one that computes by itself does not.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from mathrl.core.types import read_problems
from mathrl.params.rollout import Bubblewrap, Rollout, Turns
from mathrl.params.run import Model, Prompt
from mathrl.rewards.compose import build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.sampler import Sampler
from mathrl.tools.open_tool import open_tool
from mathrl.tools.tool import Session, Tool, ToolOutput


@dataclass
class WrongSession:
    """A session that adds one to every number it gives."""

    session: Session

    def run(self, code: str) -> ToolOutput:
        output = self.session.run(code)
        return replace(output, text=str(int(output.text) + 1)) if output.text.isdigit() else output

    def close(self) -> None:
        self.session.close()


@dataclass
class WrongTool:
    tool: Tool

    def session(self) -> Session:
        return WrongSession(self.tool.session())

    def close(self) -> None:
        self.tool.close()


def main(model: Path, file: Path) -> None:
    problems = read_problems(file)
    engine, tokenizer = open_engine(model, Model(), Rollout(engine="torch", turns=Turns(max_calls=1)), "cpu")
    for name, wrong in (("the sandbox", False), ("one too large", True)):
        tool = open_tool(Bubblewrap())
        sampler = Sampler(engine, tokenizer, Prompt(), tool=WrongTool(tool) if wrong else tool)
        groups = sampler.sample(problems, Sampling(1, 1.0, 64), build_reward({"extraction": "strict"}), seed=0)
        tool.close()
        graded = [(problem, group[0]) for problem, group in zip(problems, groups, strict=True) if group]
        right = sum(response.correct for _, response in graded)
        above = sum(response.extracted == str(int(problem.answers[0]) + 1) for problem, response in graded)
        print(f"{name}: right {right / len(graded):.3f}, one too large {above / len(graded):.3f}, of {len(graded)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
