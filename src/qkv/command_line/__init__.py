"""Machinery of the command line: parsing, flags, errors, completion, input and output."""
