"""Backbones, heads, and what joins them."""
