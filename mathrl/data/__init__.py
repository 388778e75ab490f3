"""Problems as prompts and as training sets: templates, demonstrations, lengths, difficulty, mixtures, export."""
