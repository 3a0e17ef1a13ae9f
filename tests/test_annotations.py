"""Annotations are checked at run time in these tests: a wrong shape does not get past one."""

import pytest
import torch

from nearfar.losses import SimCLR
from nearfar.networks import Queue


def test_a_wrong_shape_or_type_is_caught():
    with pytest.raises(Exception, match="Type-check"):
        SimCLR()(torch.zeros(4, 3), torch.zeros(4, 3, 2))
    with pytest.raises(Exception, match="Type-check"):
        Queue("8", 4)
