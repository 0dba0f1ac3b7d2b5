"""Temperature balancing of a LightningModule that one can't change: a callback, which also logs each layer's alpha."""

import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from tempbalance.integrations.lightning import TempBalanceCallback

EPOCHS, WIDTH = 5, 128


class Theirs(LightningModule):
    """Knows nothing of balancing."""

    def __init__(self):
        super().__init__()
        layers = [module for _ in range(5) for module in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))

    def training_step(self, batch, _):
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)]


torch.manual_seed(0)
inputs = torch.randn(512, WIDTH)
data = torch.utils.data.TensorDataset(inputs, torch.tanh(inputs @ torch.randn(WIDTH, 10) / 4))
balance = TempBalanceCallback()
with tempfile.TemporaryDirectory() as folder:
    logger = CSVLogger(folder)
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[balance], logger=logger, enable_checkpointing=False
    )
    trainer.fit(Theirs(), torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
print(balance.schedulers[0].table())
