"""Runners: one forward pass over the new tokens of a step."""
