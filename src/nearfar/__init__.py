"""Contrastive representation learning for images on small hardware."""

__version__ = "0.1.0"
