"""Temperature balancing in a LightningModule: TempBalance is the scheduler that configure_optimizers returns."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

import tempbalance

EPOCHS, WIDTH = 5, 128


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        layers = [module for _ in range(5) for module in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))

    def training_step(self, batch, _):
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(tempbalance.param_groups(self), lr=0.05, momentum=0.9)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
        return [optimizer], [tempbalance.TempBalance(optimizer, self, cosine)]


torch.manual_seed(0)
inputs = torch.randn(512, WIDTH)
data = torch.utils.data.TensorDataset(inputs, torch.tanh(inputs @ torch.randn(WIDTH, 10) / 4))
trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
print(trainer.lr_scheduler_configs[0].scheduler.table())
