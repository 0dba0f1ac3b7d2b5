"""timm's own schedulers keep the contract."""

import pytest

pytest.importorskip("timm", reason="runs in its own environment: make test-vision")

import torch
from timm import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler, PlateauLRScheduler, create_scheduler_v2

import tempbalance
from tempbalance.integrations.timm import BalancedSchedule
from tests.cases import raises
from tests.integrations.contract import Setting, make_net
from tests.integrations.timm_contract import TimmContract


class TestPerEpoch(TimmContract):
    setting = Setting()

    def schedule(self, optimizer):
        return CosineLRScheduler(optimizer, t_initial=13)


class TestPerEpochWithTheOptimizerLoadedFirst(TestPerEpoch):
    loads_optimizer_first = True


class TestPerUpdate(TimmContract):
    setting, stop_after = Setting(per="step", interval=3), 5

    def schedule(self, optimizer):
        return CosineLRScheduler(optimizer, t_initial=13, t_in_epochs=False)


def test_layer_decay_and_warm_up_of_a_vision_transformer_are_multiplied_never_compounded():
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 10}
    model = create_model("vit_tiny_patch16_224", pretrained=False, **sizes)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.9)
    tempbalance.split_param_groups(optimizer, model)
    decay = [group["lr_scale"] for group in optimizer.param_groups]
    assert len(set(decay)) > 3
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(held) == len(set(held)) == len([each for each in model.parameters() if each.requires_grad])
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=4, warmup_epochs=2, warmup_lr=1e-4)
    balanced = BalancedSchedule(schedule, model, fused={"*.qkv": 3})
    assert "blocks.1.attn.qkv" in balanced.scheduler.last_scores
    for epoch in range(4):
        base = 1e-4 if epoch == 0 else schedule._get_lr(epoch)[0]
        for group, each in zip(optimizer.param_groups, decay, strict=True):
            scale = balanced.scheduler.last_scales.get(group.get("layer"), 1.0)
            assert group["lr"] == pytest.approx(base * each * scale, rel=1e-12)
        for parameter in model.parameters():
            parameter.grad = 0.01 * torch.randn_like(parameter)
        optimizer.step()
        balanced.step(epoch + 1)
    balanced.restore()
    assert [group["lr_scale"] for group in optimizer.param_groups] == decay


def test_timms_plateau_is_refused():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    with raises(TypeError, "PlateauLRScheduler"):
        BalancedSchedule(PlateauLRScheduler(optimizer), net)
