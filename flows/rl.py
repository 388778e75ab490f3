"""Train the SFT model with verifiable rewards, on problems chosen by their pass rates."""

from mathrl.flows.factory import stage_flow

rl = stage_flow("rl", __doc__)
