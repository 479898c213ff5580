"""Serve, load and probe real-time interaction models on a beat."""
