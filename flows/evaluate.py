"""Compare base, SFT and RL models on held-out problems."""

from mathrl.flows.factory import stage_flow

evaluate = stage_flow("evaluate", __doc__)
