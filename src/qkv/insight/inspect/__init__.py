"""Inspection of one text: attention, logit lens, attribution, edits, activation patching."""
