"""Experiments of the lectures, each computed by the code that trains and serves."""
