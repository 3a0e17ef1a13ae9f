"""Training: settings, the plan of a run, the one loop, optimisers, checkpoints,
and health.

The names stand in its files alone, so that settings can be read without torch.
"""
