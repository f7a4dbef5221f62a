"""Sampling: one loop, small swappable parts."""
