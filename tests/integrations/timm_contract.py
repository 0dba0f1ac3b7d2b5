"""The contract for a scheduler that multiplies by ``lr_scale``: timm's own, and one of ours that does the same."""

import torch

import tempbalance
from tempbalance.integrations.timm import BalancedSchedule
from tests.integrations.contract import NUM_EPOCHS, OPTIONS, Contract, Rates, batches, loss_of, make_net, note_rates


class TimmContract(Contract):
    """A subclass builds the schedule."""

    loads_optimizer_first = False

    def schedule(self, optimizer):
        raise NotImplementedError

    def train(self, folder, *, stop=False, remove=False):
        noted = Rates()
        if not stop:
            self._train(folder, noted, range(self.setting.num_steps), restore_after=self.stop_after if remove else None)
            return noted
        self._train(folder, noted, range(self.stop_after))
        self._train(folder, noted, range(self.stop_after, self.setting.num_steps))
        return noted

    def _train(self, folder, noted, updates, *, restore_after=None):
        net = make_net()
        optimizer = self.setting.optimizer(tempbalance.param_groups(net, self.setting.groups(net)))
        if updates.start:
            state = torch.load(folder / "last.pt", weights_only=True)
            net.load_state_dict(state["net"])
            if self.loads_optimizer_first:
                optimizer.load_state_dict(state["optimizer"])
        own = self.schedule(optimizer)
        schedule = BalancedSchedule(own, net, interval=self.setting.interval, **OPTIONS)
        if updates.start:
            if not self.loads_optimizer_first:
                optimizer.load_state_dict(state["optimizer"])
            self._step(schedule, updates.start)
        note_rates(optimizer, net, noted)
        every = batches() * NUM_EPOCHS
        for update in updates:
            loss_of(net, every[update]).backward()
            optimizer.step()
            optimizer.zero_grad()
            self._step(schedule, update + 1)
            if update + 1 == restore_after:
                schedule.restore()
                schedule = own
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")

    def _step(self, schedule, num_updates):
        """As timm's training does after each update, and after each epoch."""
        schedule.step_update(num_updates)
        if num_updates % len(batches()) == 0:
            schedule.step(num_updates // len(batches()))
