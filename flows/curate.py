"""Build disjoint splits from the problem sources: deduplicate, decontaminate, report."""

from mathrl.flows.factory import stage_flow

curate = stage_flow("curate", __doc__)
