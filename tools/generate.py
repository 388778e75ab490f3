"""Rewrite what is generated from the code: `make generate`. Tests fail when one of these files is out of date.

- the code that DVC watches in dvc.yaml and pipelines/*/dvc.yaml, and the graphs of the recipes;
- the floors and the map in docs/house.md.
"""

import house_map

from mathrl.params import recipe_graph, watched_code
from mathrl.params.recipe import recipe_names

if __name__ == "__main__":
    watched_code.main(house_map.ROOT)
    for name in recipe_names(house_map.ROOT / "params"):
        recipe_graph.bring_up_to_date(name, house_map.ROOT)
    house_map.main()
