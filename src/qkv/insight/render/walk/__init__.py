"""The walk of one head on a page, in the terminal and as a figure."""
