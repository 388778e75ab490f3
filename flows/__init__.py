"""What a person starts from the Prefect UI: one flow a file, named as the button says."""
