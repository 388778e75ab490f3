"""Mathematical pages out of a corpus: classifier, top share, promoted domains, next round."""

from flows.factory import stage_flow

pages = stage_flow("pages", __doc__)
