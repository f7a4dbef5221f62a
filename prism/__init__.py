"""Self-correction for masked diffusion models."""
