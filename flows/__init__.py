"""What a person starts from the Prefect UI: one flow per file, named as its button."""
