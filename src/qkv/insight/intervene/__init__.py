"""Interventions: attention edits and steering, and what they change in the predictions."""
