"""Judging: tasks, statistics and run records."""
