"""Rendering of a look: terminal, HTML page and figures."""
