"""How long a step takes: `python -m benchmarks` (`--help` for more).

Every figure is measured in one run on one machine beside what it is compared with: our fast path, a slow sampler and training
step written as the published ones are (`benchmarks.published`), and the bare backbone, which is the floor. Ratios carry over to
other machines, milliseconds do not.
"""
