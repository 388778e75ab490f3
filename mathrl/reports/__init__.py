"""What people look at: tables, pictures, accounts of the data stages, and one HTML page per run."""
