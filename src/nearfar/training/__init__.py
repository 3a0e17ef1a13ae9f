"""Training: settings, the plan of a run, the one loop on Lightning Fabric, optimisers, checkpoints,
and health.

The names stand in its files alone, so that settings can be read without torch.
"""
