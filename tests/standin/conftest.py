"""Lets Fabric train on the stand-in."""

import lightning_fabric.connector as connector
import pytest
import torch
from lightning_fabric.accelerators import ACCELERATOR_REGISTRY, CPUAccelerator
from lightning_fabric.strategies import SingleDeviceStrategy

from tests.standin.device import NAME


class StandInAccelerator(CPUAccelerator):
    """The stand-in as Fabric sees it."""

    def setup_device(self, device):
        pass

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device(NAME, 0)] * devices

    @staticmethod
    def name():
        return NAME


ACCELERATOR_REGISTRY.register(NAME, StandInAccelerator)


@pytest.fixture(autouse=True)
def fabric_knows_the_device(monkeypatch):
    choose = connector._Connector._choose_strategy

    def chosen(self):
        return SingleDeviceStrategy(torch.device(NAME, 0)) if self._accelerator_flag == NAME else choose(self)

    monkeypatch.setattr(connector._Connector, "_choose_strategy", chosen)
