"""Problems of any source: rows of files and of the hub, which fields they have, and `Problem` objects of them."""
