"""A decode step on a GPU as a chain of few kernels, each of which starts before the last ends."""
