"""Complete runs, and the only place where defaults are chosen."""
