"""Run the whole pipeline: curate, sft, difficulty, mix, rl, evaluate, register."""

from flows.factory import option, stage_flow

pipeline = stage_flow("pipeline", __doc__, controls=option(bool, "Also train and evaluate the control runs.", False))
