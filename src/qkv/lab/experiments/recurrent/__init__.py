"""What recurrent models have trouble with, and what attention and residual connections change."""
