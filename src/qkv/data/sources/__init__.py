"""Data sources: files, folders, globs, pipes and Hugging Face datasets, in many formats."""
