"""Where boards and texts come from: generators, the users' files, and the tokens models read."""
