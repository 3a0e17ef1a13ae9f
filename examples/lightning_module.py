"""An exact loss in a LightningModule: SigCLR, whose learned bias trains with the rest.

python examples/lightning_module.py
"""

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nearfar.losses import SigCLR
from nearfar.views import make_views, plan

pl.seed_everything(0)
images = torch.from_numpy(load_digits().images * 15.9375).to(torch.uint8)[
    :, None
]  # [1797, 1, 8, 8]


class Contrastive(pl.LightningModule):
    """A network, the views of a batch, and a loss that joins the batches of all processes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
        self.loss = SigCLR(gather=True)
        self.views, self.chance = (
            plan("grayscale", image_size=8, channels=1),
            torch.Generator().manual_seed(0),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        first, second = make_views(batch[0], self.views, self.chance, mean=[0.3], std=[0.4])
        loss = self.loss(self.net(first), self.net(second))
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


loader = DataLoader(TensorDataset(images), batch_size=256, shuffle=True, drop_last=True)
trainer = pl.Trainer(
    max_epochs=5, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
)
model = Contrastive()
trainer.fit(model, loader)
print(f"loss {trainer.callback_metrics['loss']:.3f}, bias {model.loss.bias.item():.3f}")
