"""What trains models for people, over compiled ones: losses as in eager, complete logs, checkpoints that load."""

import copy
import logging

import accelerate
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import precast

CONFIG = BertConfig(
    vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
BACKENDS = ["nop", pytest.param("native", marks=pytest.mark.models)]


def tiny_bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(CONFIG)


def batches(count=4):
    chance = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 32, (2, 6), generator=chance), "labels": torch.tensor([step % 2, 1])}
        for step in range(count)
    ]


def assert_close(ours, theirs):
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)


def assert_same_state(module, other):
    state = other.state_dict()
    assert module.state_dict().keys() == state.keys()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-5)


def trained(model, count=4):
    """The losses of a few steps."""
    optimizer, losses = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1), []
    for batch in batches(count):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Recording(TrainerCallback):
    """What Trainer tells of each step."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)


def with_trainer(model, folder, **kwargs):
    rows = [
        {"input_ids": row, "labels": int(label), "comment": "not an argument of forward"}
        for batch in batches()
        for row, label in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=1, save_steps=2, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=1e-2, save_strategy="steps", eval_strategy="steps",
        eval_steps=2, dataloader_pin_memory=False,
    )  # fmt: skip
    callback = Recording()
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    trainer.train(**kwargs)
    assert callback.steps == list(range(callback.steps[0], 5))
    return trainer.state.log_history


@pytest.mark.parametrize("backend", BACKENDS)
def test_trainer_of_transformers(backend, tmp_path):
    eager, model = tiny_bert(), tiny_bert()
    compiled = precast.compile(model, backend=backend)
    theirs, ours = with_trainer(eager, tmp_path / "eager"), with_trainer(compiled, tmp_path / "compiled")
    assert [list(entry) for entry in ours] == [list(entry) for entry in theirs]
    assert_close(*([entry.get("loss", entry.get("eval_loss", 0.0)) for entry in log] for log in (ours, theirs)))
    assert_same_state(model, eager)
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "compiled" / "checkpoint-4")
    assert loaded.config.architectures == ["BertForSequenceClassification"]
    assert_same_state(loaded, eager)


@pytest.mark.models
def test_trainer_goes_on_from_a_checkpoint(tmp_path):
    eager, again = tiny_bert(), tiny_bert()
    with_trainer(eager, tmp_path / "eager")
    with_trainer(precast.compile(tiny_bert(), backend="nop"), tmp_path / "compiled")
    checkpoint = str(tmp_path / "compiled" / "checkpoint-2")
    with_trainer(precast.compile(again, backend="nop"), tmp_path / "compiled", resume_from_checkpoint=checkpoint)
    assert_same_state(again, eager)


@pytest.mark.thinned
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_accelerate(backend, precision, tmp_path):
    losses = {}
    for name in ("eager", "compiled"):
        # It is one for all of a process, in one precision.
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
        model = tiny_bert()
        model = precast.compile(model, backend=backend) if name == "compiled" else model
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
        losses[name] = []
        for batch in batches():
            loss = model(**batch).loss
            assert loss.dtype == torch.float32
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
        accelerator.save_state(tmp_path / name)
        state = copy.deepcopy(accelerator.unwrap_model(model).state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(tmp_path / name)
        torch.testing.assert_close(model.state_dict(), state)
        accelerator.free_memory()
    tolerance = 1e-4 if precision == "no" else 2e-2
    ours, theirs = torch.tensor(losses["compiled"]), torch.tensor(losses["eager"])
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lora_of_peft(backend, tmp_path):
    # Takes seconds to import.
    peft = pytest.importorskip("peft")

    def made():
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], init_lora_weights=False)
        model = tiny_bert()
        torch.manual_seed(1)
        return peft.get_peft_model(model, config)

    eager, model = made(), made()
    compiled = precast.compile(model, backend=backend)
    assert_close(trained(compiled), trained(eager))
    batch = batches(1)[0]
    unmerged = eager(**batch).logits

    def same_logits():
        torch.testing.assert_close(compiled(**batch).logits, eager(**batch).logits, rtol=1e-4, atol=1e-5)

    for change in ("merge_adapter", "unmerge_adapter"):
        for each in (eager, compiled):
            getattr(each, change)()
        same_logits()
        torch.testing.assert_close(compiled(**batch).logits, unmerged, rtol=1e-3, atol=1e-4)
    with eager.disable_adapter(), compiled.disable_adapter():
        same_logits()
        assert not torch.allclose(compiled(**batch).logits, unmerged)
    same_logits()
    compiled.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny_bert(), tmp_path)
    torch.testing.assert_close(loaded.eval()(**batch).logits, unmerged, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def lightning():
    """Imported here, since that takes seconds."""
    return pytest.importorskip("lightning")


def made_for_lightning(lightning, *, calls_forward):
    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            self.losses = []

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.mse_loss(self(x) if calls_forward else self.layers(x), y)
            self.log("train_loss", loss)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Regression


def fitted(lightning, module, folder):
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(2)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}, trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_lightning(lightning, backend, tmp_path):
    kind = made_for_lightning(lightning, calls_forward=True)
    torch.manual_seed(0)
    eager = kind()
    original = copy.deepcopy(eager)
    compiled = precast.compile(original, backend=backend)
    theirs, _ = fitted(lightning, eager, tmp_path / "eager")
    ours, trainer = fitted(lightning, compiled, tmp_path / "compiled")
    assert ours.keys() == theirs.keys() == {"train_loss", "val_loss"}
    assert_close(list(ours.values()), list(theirs.values()))
    assert_close(compiled.losses, eager.losses)
    assert precast.variants(compiled)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    assert_same_state(kind.load_from_checkpoint(tmp_path / "model.ckpt"), eager)


@pytest.mark.filterwarnings("ignore")
def test_a_step_of_lightning_that_does_not_call_the_model_is_told_of(lightning, tmp_path):
    compiled = precast.compile(made_for_lightning(lightning, calls_forward=False)(), backend="nop")
    with pytest.warns(UserWarning, match=r"training_step of Regression runs uncompiled.*self\(x\)"):
        fitted(lightning, compiled, tmp_path)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        eager, model = tiny_bert(), tiny_bert()
        wrapped = nn.parallel.DistributedDataParallel(precast.compile(model, backend="nop"))
        around = precast.compile(nn.parallel.DistributedDataParallel(tiny_bert()), backend="nop")
        theirs, ours, others = (trained(each) for each in (eager, wrapped, around))
        assert_close(ours, theirs)
        assert_close(others, theirs)
        assert_same_state(model, eager)
    finally:
        torch.distributed.destroy_process_group()
