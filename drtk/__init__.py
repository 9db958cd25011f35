"""Composable Unix-style tools for dense retrieval."""

__version__ = "0.1.0"
