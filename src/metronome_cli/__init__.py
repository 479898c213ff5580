"""Serve, load and probe real-time interaction models on a beat."""

__version__ = "0.1.0"
