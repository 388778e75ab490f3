"""Collect mathematical pages from a corpus, in rounds of classifier, top share and promoted domains."""

from flows.factory import stage_flow

pages = stage_flow("pages", __doc__)
