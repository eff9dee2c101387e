"""Embedded data sources: the Python standard library and an English-Turkish grammar."""
