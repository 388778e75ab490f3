"""Collect mathematical pages from a corpus, in rounds of classifier, top share and promoted domains."""

from functools import partial

from mathrl.flows.factory import JOBS, form_flow
from mathrl.params.schema import sections_read
from mathrl.tasks.runs import run_recipe

# The recipe has one step, of the stage pages, which reads no model.
pages = form_flow("pages", __doc__, sections_read(["pages"]), partial(run_recipe, "pages"), groups=False, jobs=JOBS)
