"""What `make docs` adds to the pages of docs/: code of the library, verdicts, formulas, reference."""
