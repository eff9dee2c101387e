"""The exercises: for each its texts, its solution and its checks."""
