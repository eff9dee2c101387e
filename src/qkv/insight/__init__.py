"""Pictures of what a model learned and how: the curves of its training."""
