"""Rewrite what is generated from the code: `make generate`. Tests fail when one of these files is out of date.

- dvc.yaml, from the recipe of the pipeline;
- the map in docs/reference/house.md;
- the tables in engines.md, coming_from.md and what_fits.md of docs/reference, and in docs/how_to/experiments.md;
- the pages of the presets that reproduce a document, docs/reference/presets/.
"""

import coming_from
import document_pages
import engine_tables
import group_tables
import house_map
import what_fits

from mathrl.params.recipe_steps import DEFAULT
from mathrl.recipes.graph import write_recipe_graph

if __name__ == "__main__":
    write_recipe_graph(DEFAULT, house_map.ROOT)
    house_map.main()
    engine_tables.main()
    coming_from.main()
    group_tables.main()
    what_fits.main()
    document_pages.main()
