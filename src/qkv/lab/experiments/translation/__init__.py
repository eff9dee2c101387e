"""Translation: what attention, scores, teacher forcing and sampling do for a translator."""
