"""Figures of results, as bytes of PNG files."""
