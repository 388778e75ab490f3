"""Collect mathematical pages from a corpus, in rounds of classifier, top share and promoted domains."""

from mathrl.flows.factory import recipe_flow

pages = recipe_flow("pages", __doc__)
