"""The version, in a place that needs no installed metadata."""

__version__ = "0.1.0"
