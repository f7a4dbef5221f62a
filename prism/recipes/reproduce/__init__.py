"""The paper's experiments, each one command: models trained once, results written once, figures drawn from the results."""
