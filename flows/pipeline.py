"""Run the whole pipeline: curate, sft, difficulty, mix, rl, evaluate, register."""

from mathrl.flows.factory import stage_flow

pipeline = stage_flow("pipeline", __doc__)
