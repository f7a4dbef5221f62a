"""Studies: the paper's and our own, each one command; models trained once, results written once, figures drawn from the
results."""
