"""Mathematical pages out of a corpus, in rounds of a text classifier."""
