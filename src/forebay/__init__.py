"""Forebay: the basin in front of self-hosted LLM engines."""

__version__ = "0.1.0"
