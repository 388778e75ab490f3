"""Models as Hugging Face folders: made, loaded, packed, run fast, written."""
