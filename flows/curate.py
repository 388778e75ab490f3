"""Problems from their sources to disjoint splits: deduplicated, decontaminated, reported."""

from flows.factory import stage_flow

curate = stage_flow("curate", __doc__)
