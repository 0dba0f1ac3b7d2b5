"""The contract, kept by the plain loop itself."""

import torch
from torch.optim.lr_scheduler import LambdaLR

import tempbalance
from tests.integrations.contract import (
    NUM_EPOCHS,
    OPTIONS,
    Contract,
    Rates,
    batches,
    loss_of,
    make_net,
    note_rates,
    plain_loop,
)


class TestPlainLoop(Contract):
    def train(self, folder, *, stop=False, remove=False):
        if remove:
            return plain_loop(self.setting, remove_after=self.stop_after)
        noted = Rates()
        if stop:
            self._epochs(folder, noted, range(1))
            return self._epochs(folder, noted, range(1, NUM_EPOCHS))
        return self._epochs(folder, noted, range(NUM_EPOCHS))

    def _epochs(self, folder, noted, epochs):
        net = make_net()
        optimizer = self.setting.optimizer(tempbalance.param_groups(net))
        scheduler = tempbalance.TempBalance(optimizer, net, LambdaLR(optimizer, self.setting.shape), **OPTIONS)
        parts = {"net": net, "optimizer": optimizer, "scheduler": scheduler}
        if epochs.start:
            state = torch.load(folder / "last.pt", weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(state[name])
        note_rates(optimizer, net, noted)
        for _ in epochs:
            for batch in batches():
                optimizer.zero_grad()
                loss_of(net, batch).backward()
                optimizer.step()
            scheduler.step()
        torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "last.pt")
        return noted
