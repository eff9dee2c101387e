"""The lectures' claims, each one computed."""
