"""What is learned: pure functions of a model and a batch."""
