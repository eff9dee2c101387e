"""Faster parts of a model for training on a GPU, installed from outside."""
