"""Fine-tune the base model on worked solutions."""

from mathrl.flows.factory import stage_flow

sft = stage_flow("sft", __doc__)
