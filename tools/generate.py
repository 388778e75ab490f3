"""Rewrite what is generated from the code: `make generate`. Tests fail when one of these files is out of date.

- the code that DVC watches in dvc.yaml;
- the floors and the map in docs/house.md;
- the tables in docs/engines.md, docs/experiments.md and docs/coming_from.md;
- the pages of the presets that reproduce a document, docs/presets/.
"""

import coming_from
import document_pages
import engine_tables
import group_tables
import house_map

from mathrl.params import watched_code

if __name__ == "__main__":
    watched_code.main(house_map.ROOT)
    house_map.main()
    engine_tables.main()
    group_tables.main()
    coming_from.main()
    document_pages.main()
