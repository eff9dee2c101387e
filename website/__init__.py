"""What `make docs` adds to pages: code of the library, verdicts, formulas, the reference."""
