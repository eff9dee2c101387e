"""The tuned lens: a logit lens with a trained translator for each layer."""
