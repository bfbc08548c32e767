"""Contractions of chains of cores."""
