"""All of a model that a measurement must leave alone, and its comparison bit for bit."""

from __future__ import annotations

import random

import numpy
import torch


def photograph(model):
    """All that a measurement must leave alone."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "identities": {name: (id(tensor), tensor.data_ptr()) for name, tensor in tensors.items()},
        "gradients": {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {name: (dict(module._forward_hooks), dict(module._forward_pre_hooks), dict(module._backward_hooks)) for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "random": (random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist()),
    }  # fmt: skip


def assert_same(one, other, where="model"):
    """Equal bit for bit, all the way down."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{number}]")
    else:
        assert one == other, where
