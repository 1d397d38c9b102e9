"""In the style of timm's train.py: mixup, a native scaler, an average of the weights, its optimizers and schedulers."""

from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()  # where torchvision was built for another torch

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler
from torch.utils.data import DataLoader, TensorDataset
from weights import fingerprint

timm.utils.random_seed(0, 0)
torch.set_num_threads(1)
model = timm.create_model("resnet10t", num_classes=10)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.02)
scaler, ema = NativeScaler(device="cpu"), ModelEmaV3(model, decay=0.99)
scheduler = CosineLRScheduler(optimizer, t_initial=10)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10)
criterion = SoftTargetCrossEntropy()
loader = DataLoader(TensorDataset(torch.randn(40, 3, 32, 32), torch.randint(10, (40,))), batch_size=4, shuffle=True)
losses = AverageMeter()
updates = 0
for images, labels in loader:
    images, targets = mixup(images, labels)
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(images), targets)
    scaler(loss, optimizer, clip_grad=1.0, clip_mode="norm", parameters=model.parameters())
    optimizer.zero_grad()
    updates += 1
    ema.update(model, step=updates)
    scheduler.step_update(num_updates=updates)
    losses.update(loss.item(), images.size(0))
    print("loss", losses.val)
print("weights", fingerprint(model), fingerprint(ema.module))
