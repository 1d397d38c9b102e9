"""Real trainings of transformers and Lightning: what they log, and that they compute what they computed before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rooflight
from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS, SEQUENCE = 8, 16


def entries_of(logs):
    return [{name.removeprefix("rooflight/"): value for name, value in log.items()} for log in logs]


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers")


def hf_trainer(transformers, folder, **options):
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=SEQUENCE)
    )
    ids = torch.randint(50, (64, SEQUENCE))
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=4, logging_steps=4, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": row} for row in ids]
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])


@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2}, {"eval_strategy": "steps", "eval_steps": 2}]
)
def test_transformers(transformers, tmp_path, options, caplog):
    plain, logged = (hf_trainer(transformers, tmp_path / name, **options) for name in ("plain", "logged"))
    rooflight.log_training(logged, every=4)
    for trainer in (plain, logged):
        transformers.set_seed(1)
        trainer.train()
    own = [log for log in logged.state.log_history if not any(name.startswith("rooflight/") for name in log)]
    assert [log.get("loss") for log in own] == [log.get("loss") for log in plain.state.log_history]
    weights = logged.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in plain.model.state_dict().items())
    entries = [log for log in logged.state.log_history if "rooflight/step_time_s" in log]
    assert [log["step"] for log in entries] == [4, 8]
    batch = 4 * options.get("gradient_accumulation_steps", 1)
    for entry in entries_of(entries):
        assert entry["samples_per_s"] * entry["step_time_s"] == pytest.approx(batch)
        assert entry["tokens_per_s"] * entry["step_time_s"] == pytest.approx(batch * SEQUENCE)
    assert "training_step" not in vars(logged)
    assert not any("rooflight" in line for line in caplog.messages)


def test_an_error_while_logging_is_told_and_the_training_goes_on(transformers, tmp_path, monkeypatch, caplog):
    trainer = hf_trainer(transformers, tmp_path)
    rooflight.log_training(trainer, every=2)
    monkeypatch.setattr("rooflight.callbacks.meter.resident", lambda: 1 / 0)
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert [line for line in caplog.messages if "rooflight" in line] == [
        "rooflight: nothing more is logged (ZeroDivisionError: division by zero)"
    ]


def lightning_training(lightning, *, logged, **options):
    module_base: Any = lightning.LightningModule
    logger_base: Any = lightning.pytorch.loggers.logger.DummyLogger

    class Net(module_base):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.head(self.body(batch[0]).relu()), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    class Kept(logger_base):
        def __init__(self):
            super().__init__()
            self.entries = []

        def log_metrics(self, metrics, step=None):
            self.entries.append((step, metrics))

    torch.manual_seed(0)
    module, kept = Net(), Kept()
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=kept, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    if logged:
        rooflight.log_training(trainer, every=4)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module.state_dict(), [entry for entry in kept.entries if "rooflight/step_time_s" in entry[1]]


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}])
def test_lightning(options):
    lightning = pytest.importorskip("lightning")
    plain, nothing = lightning_training(lightning, logged=False, **options)
    weights, entries = lightning_training(lightning, logged=True, **options)
    assert not nothing and all(torch.equal(value, weights[name]) for name, value in plain.items())
    gathered = options.get("accumulate_grad_batches", 1)
    assert [step for step, _ in entries] == list(range(3, 16 // gathered, 4))
    for entry in entries_of(entry for _, entry in entries):
        assert entry["samples_per_s"] * entry["step_time_s"] == pytest.approx(4 * gathered)
