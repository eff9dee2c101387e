"""The attention mechanism itself."""
