"""The version; imports nothing, and does not need the metadata of an installed package."""

__version__ = "0.12.0"
