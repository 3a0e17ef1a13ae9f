"""Contrastive losses as nn.Modules, usable alone: `from nearfar.losses import SimCLR; SimCLR()(z1, z2)`."""
