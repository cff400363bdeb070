"""Lightning and Hugging Face. Skipped without their packages: see `make test-integrations`."""

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import antiphase as ap
from antiphase.errors import HorizonError
from antiphase.torch import PrivacyEngine, batch_sampler_for, wrapping
from antiphase.torch.huggingface import PrivateTrainer
from antiphase.torch.lightning import PrivacyCallback
from antiphase.torch.noise_run import row_of
from tests.torch import setting

SIZE, BATCH, EPOCHS, RATE, CLIP = 24, 8, 2, 0.1, 0.5
TARGET = {"target_epsilon": 4.0, "target_delta": 1e-5, "max_grad_norm": CLIP}


def engine_for(mechanism="dp-mf"):
    return PrivacyEngine(mechanism=mechanism, key=ap.Key.insecure(1))


def amplified():
    """For cyclic Poisson samples, over the steps of these tests."""
    f = ap.design(
        "toeplitz",
        steps=EPOCHS * SIZE // BATCH,
        bands=2,
        participation=ap.min_separation(3, apart=2),
    )
    return ap.calibrate(
        f, noise_multiplier=1.0, delta=1e-5, sampling=ap.sampling.CyclicPoisson(1 / 3)
    )


def moved(before, after):
    return any(
        not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True)
    )


def check_first_step(engine, before, after, loss_of, clip=CLIP):
    """One step of SGD moved the weights by the clipped sum plus row 0, divided."""
    release = engine._training.release
    trainable = {name: p for name, p in before.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for i in release.batches.sampler.order[:BATCH]:
        gradients = torch.autograd.grad(loss_of(before, int(i)), list(trainable.values()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        for name, g in zip(trainable, gradients, strict=True):
            sums[name] += g * min(1.0, clip / float(norm))
    row, now = row_of(release, 0), dict(after.named_parameters())
    for name, p in trainable.items():
        noisy = (p - now[name]).detach() / RATE * release.divisor
        expected = sums[name] + torch.from_numpy(row[name].reshape(p.shape)).float()
        torch.testing.assert_close(noisy, expected, atol=2e-4, rtol=1e-3)


class TestMissing:
    @pytest.mark.parametrize(
        ("module", "extra"),
        [("lightning", "antiphase[lightning]"), ("huggingface", "antiphase[huggingface]")],
    )
    def test_it_says_what_to_install(self, module, extra, monkeypatch):
        found = __import__(f"antiphase.torch.{module}", fromlist=["MISSING"])
        monkeypatch.setattr(found, "_installed", (), raising=False)
        monkeypatch.setattr(found, "_Trainer", object, raising=False)
        make = (
            (lambda: PrivacyCallback(max_grad_norm=1.0))
            if module == "lightning"
            else PrivateTrainer
        )
        with pytest.raises(ImportError) as error:
            make(**({} if module == "lightning" else {"privacy": {}}))
        assert extra in str(error.value)


# Lightning


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request):
    pytest.importorskip("lightning", reason="needs the extra antiphase[lightning]")
    return pytest.importorskip(request.param, reason="needs the extra antiphase[lightning]")


def lit_module(pl, schedule=None, optimizers=1, dropout=False):
    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = setting.small_model()
            self.dropout = torch.nn.Dropout(0.3 if dropout else 0.0)

        def forward(self, inputs):
            return self.net(self.dropout(inputs))

        def training_step(self, batch, _):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            made = [torch.optim.SGD(self.parameters(), lr=RATE) for _ in range(optimizers)]
            if schedule is None:
                return made
            scheduler = torch.optim.lr_scheduler.StepLR(made[0], 1, gamma=0.5)
            return made, [{"scheduler": scheduler, "interval": schedule}]

    return Lit()


def lit_trainer(pl, callbacks, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    return pl.Trainer(callbacks=callbacks, **{"max_epochs": EPOCHS, **quiet, **options})


def lit_loader(**options):
    return DataLoader(setting.data(SIZE), batch_size=BATCH, shuffle=True, **options)


class TestLightning:
    def test_trains_as_planned(self, pl):
        callback = PrivacyCallback(engine_for(), log_epsilon="epsilon", **TARGET)
        module, trainer = lit_module(pl), lit_trainer(pl, [callback])
        before = copy.deepcopy(module)
        trainer.fit(module, lit_loader())
        engine = callback.engine
        assert engine.plan.steps == trainer.global_step == EPOCHS * SIZE // BATCH
        assert engine.remaining_steps == 0
        assert 3.9 < engine.get_epsilon(1e-5) <= 4.0
        assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(
            engine.get_epsilon(1e-5), rel=1e-6
        )
        assert (engine._training.release.ledger.count == EPOCHS).all()
        assert moved(before, module)
        assert not hasattr(module.net[0].weight, "grad_sample")  # hooks are removed
        with pytest.raises(ValueError, match="second release"):
            trainer.fit(module, lit_loader())

    def test_a_step_past_the_plan_raises(self, pl):
        class Longer(pl.Callback):
            def on_train_start(self, trainer, _):
                trainer.fit_loop.max_epochs = EPOCHS + 1

        callback = PrivacyCallback(engine_for(), **TARGET)
        with pytest.raises(HorizonError):
            lit_trainer(pl, [callback, Longer()]).fit(lit_module(pl), lit_loader())
        assert callback.engine.remaining_steps == 0

    def test_a_step_is_the_clipped_sum_and_a_row_of_noise(self, pl):
        callback = PrivacyCallback(engine_for(), max_grad_norm=CLIP, noise_multiplier=0.5)
        module = lit_module(pl)
        before, data = copy.deepcopy(module), setting.data(SIZE)
        lit_trainer(pl, [callback], max_steps=1).fit(module, lit_loader())
        assert callback.engine.plan.steps == 1

        def loss_of(model, i):
            return F.cross_entropy(model(data[i][0][None]), data[i][1][None])

        check_first_step(callback.engine, before, module, loss_of)

    @pytest.mark.parametrize("mechanism", ["dp-sgd", "dp-mf+"])
    def test_mechanisms(self, pl, mechanism):
        callback = PrivacyCallback(engine_for(mechanism), **TARGET)
        lit_trainer(pl, [callback]).fit(lit_module(pl), lit_loader(num_workers=1))
        assert callback.engine.remaining_steps == 0
        assert (callback.engine._training.release.ledger.count == EPOCHS).all()

    @pytest.mark.parametrize(
        ("interval", "rates"), [("step", 0.5 ** np.arange(6)), ("epoch", [1, 1, 1, 0.5, 0.5, 0.5])]
    )
    def test_the_schedule_is_in_the_plan(self, pl, interval, rates):
        callback = PrivacyCallback(engine_for(), **TARGET)
        module = lit_module(pl, interval)
        lit_trainer(pl, [callback]).fit(module, lit_loader())
        assert callback.engine.plan.workload == ap.Workload.sgd(
            6, learning_rates=RATE * np.asarray(rates)
        )
        assert callback.optimizer.param_groups[0]["lr"] == pytest.approx(
            RATE * 0.5 ** (6 if interval == "step" else 2)
        )

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"gradient_clip_val": 1.0}, "gradient_clip_val"),
            ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
            ({"limit_train_batches": 2}, "limit_train_batches"),
            ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders"),
            ({"max_epochs": -1}, "max_epochs"),
        ],
    )
    def test_refused(self, pl, options, reason):
        callback = PrivacyCallback(engine_for(), **TARGET)
        with pytest.raises(ValueError, match=reason):
            lit_trainer(pl, [callback], **options).fit(lit_module(pl), lit_loader())
        assert callback.engine.mechanism is None

    def test_several_optimizers_or_loaders_are_refused(self, pl):
        module = lit_module(pl, optimizers=2)
        module.automatic_optimization = False
        with pytest.raises(ValueError, match="2 optimizers"):
            lit_trainer(pl, [PrivacyCallback(engine_for(), **TARGET)]).fit(module, lit_loader())
        with pytest.raises(ValueError, match="one torch DataLoader"):
            lit_trainer(pl, [PrivacyCallback(engine_for(), **TARGET)]).fit(
                lit_module(pl), [lit_loader(), lit_loader()]
            )

    @pytest.mark.parametrize("stop", [1, 3, 4, 6])
    def test_a_checkpoint_of_lightnings_goes_on_bit_for_bit(self, pl, tmp_path, stop):
        """Within, between and after epochs; dropout and the schedule resume too."""
        key = ap.Key.generate()

        def fit(ckpt_path=None, callbacks=()):
            callback = PrivacyCallback(PrivacyEngine(mechanism="dp-mf", key=key), **TARGET)
            torch.manual_seed(7)
            module = lit_module(pl, "step", dropout=True)
            torch.manual_seed(8 if ckpt_path is None else 9)
            trainer = lit_trainer(pl, [callback, *callbacks], enable_checkpointing=bool(callbacks))
            trainer.fit(module, lit_loader(), ckpt_path=ckpt_path)
            assert callback.engine.remaining_steps == 0
            assert trainer.global_step == 6
            return callback, module

        saving = type(lit_trainer(pl, [], enable_checkpointing=True).checkpoint_callback)(
            tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1
        )
        whole, expected = fit(callbacks=[saving])
        again, module = fit(tmp_path / f"step={stop}.ckpt")
        assert not moved(expected, module)
        assert again.engine._training.release.drawn == 6
        assert again.engine.get_epsilon(1e-5) == whole.engine.get_epsilon(1e-5)
        assert (again.engine._training.release.ledger.count == EPOCHS).all()

    def test_a_checkpoint_that_was_only_tested_is_not_gone_on_with(self, pl, tmp_path):
        class Lit(type(lit_module(pl))):
            def test_step(self, batch, batch_idx):
                self.log("test", F.cross_entropy(self(batch[0]), batch[1]))

        trainer = lit_trainer(pl, [PrivacyCallback(engine_for(), **TARGET)])
        trainer.fit(Lit(), lit_loader())
        trainer.save_checkpoint(tmp_path / "done.ckpt")
        callback = PrivacyCallback(engine_for(), **TARGET)
        trainer = lit_trainer(pl, [callback])
        trainer.test(module := Lit(), lit_loader(), ckpt_path=tmp_path / "done.ckpt")
        trainer.fit(module, lit_loader())
        assert callback.engine._training.release.drawn == 6
        assert (callback.engine._training.release.ledger.count == EPOCHS).all()

    def test_a_checkpoint_without_the_place_in_the_noise_is_refused(self, pl, tmp_path):
        trainer, module = lit_trainer(pl, [], max_steps=2), lit_module(pl)
        trainer.fit(module, lit_loader())
        trainer.save_checkpoint(tmp_path / "plain.ckpt")
        callback = PrivacyCallback(engine_for(), **TARGET)
        with pytest.raises(ValueError, match="was saved without a PrivacyCallback"):
            lit_trainer(pl, [callback]).fit(module, lit_loader(), ckpt_path=tmp_path / "plain.ckpt")
        assert callback.engine.mechanism is None

    @pytest.mark.parametrize("sampled", [True, False])
    def test_an_amplified_mechanism_takes_its_own_batches_alone(self, pl, sampled):
        m = amplified()
        callback = PrivacyCallback(
            PrivacyEngine(mechanism=m), max_grad_norm=1.0, noise_multiplier=m.noise_multiplier
        )
        module, trainer = lit_module(pl), lit_trainer(pl, [callback])
        if sampled:
            trainer.fit(
                module, DataLoader(setting.data(SIZE), batch_sampler=batch_sampler_for(m, SIZE))
            )
            assert callback.engine.remaining_steps == 0
            return
        with pytest.raises(ValueError, match="are formed in another way"):
            trainer.fit(module, lit_loader())

    def test_one_target(self, pl):
        with pytest.raises(TypeError, match="one of the two"):
            PrivacyCallback(max_grad_norm=1.0)
        with pytest.raises(TypeError, match="target_delta"):
            PrivacyCallback(max_grad_norm=1.0, noise_multiplier=1.0, log_epsilon="epsilon")


# Hugging Face


@pytest.fixture
def hf():
    pytest.importorskip("accelerate", reason="needs the extra antiphase[huggingface]")
    return pytest.importorskip("transformers", reason="needs the extra antiphase[huggingface]")


def sentences(causal=False):
    """Sequences of 3 to 6 tokens; the class is the parity of the first."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(SIZE):
        ids = torch.randint(1, 20, (3 + i % 4,), generator=generator).tolist()
        made.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "labels": ids if causal else ids[0] % 2,
            }
        )
    return made


def padded(examples):
    longest = max(len(e["input_ids"]) for e in examples)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor(
            [
                e[name] + [fill[name]] * (longest - len(e[name]))
                if isinstance(e[name], list)
                else e[name]
                for e in examples
            ]
        )
        for name in fill
    }


def bert(hf):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 12, "max_position_embeddings": 8}
    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.BertForSequenceClassification(hf.BertConfig(**sizes, **drop, num_labels=2))


def gpt(hf):
    torch.manual_seed(0)
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, **drop)
    )


def hf_trainer(
    hf, folder, model, engine=None, privacy=TARGET, callbacks=None, dataset=None, **options
):
    common = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": EPOCHS,
        "optim": "sgd",
    }
    common |= {
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "use_cpu": True,
    }
    common |= {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    return PrivateTrainer(
        model=model,
        args=hf.TrainingArguments(**{**common, **options}),
        train_dataset=sentences() if dataset is None else dataset,
        data_collator=padded,
        engine=engine or engine_for(),
        privacy=privacy,
        callbacks=callbacks,
    )


class TestHuggingFace:
    def test_trains_as_planned(self, hf, tmp_path):
        model = bert(hf)
        before = copy.deepcopy(model)
        trainer = hf_trainer(hf, tmp_path, model)
        trainer.train()
        engine = trainer.engine
        assert engine.plan.steps == trainer.state.global_step == EPOCHS * SIZE // BATCH
        assert engine.remaining_steps == 0
        assert 3.9 < engine.get_epsilon(1e-5) <= 4.0
        assert (engine._training.release.ledger.count == EPOCHS).all()
        assert moved(before, model)
        assert not hasattr(model.classifier.weight, "grad_sample")  # hooks are removed
        assert trainer.evaluate(sentences())["eval_loss"] > 0
        with pytest.raises(ValueError, match="second release"):
            trainer.train()

    def test_an_amplified_mechanism_is_refused(self, hf, tmp_path):
        """The Trainer forms its own batches."""
        m = amplified()
        privacy = {"max_grad_norm": 1.0, "noise_multiplier": m.noise_multiplier}
        trainer = hf_trainer(
            hf, tmp_path, bert(hf), engine=PrivacyEngine(mechanism=m), privacy=privacy
        )
        with pytest.raises(ValueError, match="are formed in another way"):
            trainer.train()

    def test_a_step_past_the_plan_raises(self, hf, tmp_path):
        class Longer(hf.TrainerCallback):
            def on_train_end(self, *_, **__):
                trainer.training_step(trainer.model, next(iter(trainer.get_train_dataloader())))
                trainer.optimizer.step()

        trainer = hf_trainer(hf, tmp_path, bert(hf), callbacks=[Longer()])
        with pytest.raises(HorizonError):
            trainer.train()
        assert trainer.engine.remaining_steps == 0

    def test_a_step_is_the_clipped_sum_and_a_row_of_noise(self, hf, tmp_path):
        model, data = bert(hf), sentences()
        before = copy.deepcopy(model)
        privacy = {"max_grad_norm": CLIP, "noise_multiplier": 0.5}
        trainer = hf_trainer(hf, tmp_path, model, privacy=privacy, max_steps=1)
        trainer.train()
        check_first_step(trainer.engine, before, model, lambda m, i: m(**padded([data[i]])).loss)

    @pytest.mark.parametrize("clip", [CLIP, 100.0])  # all are clipped, or none
    def test_language_models_have_a_mean_of_examples_not_of_tokens(self, hf, tmp_path, clip):
        model, data = gpt(hf), sentences(causal=True)
        before = copy.deepcopy(model)
        privacy = {"max_grad_norm": clip, "noise_multiplier": 0.1 / clip}
        trainer = hf_trainer(hf, tmp_path, model, privacy=privacy, dataset=data, max_steps=1)
        trainer.train()
        check_first_step(
            trainer.engine, before, model, lambda m, i: m(**padded([data[i]])).loss, clip
        )

    def test_accumulation(self, hf, tmp_path):
        """Two batches of 4 are one of 8, with the same clipping and divisor."""
        weights = []
        for options in (
            {},
            {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2},
        ):
            model = bert(hf)
            trainer = hf_trainer(hf, tmp_path, model, engine_for(), **options)
            trainer.get_train_dataloader()
            trainer.engine._training.release.begin("ab" * 16)
            trainer.train()
            assert trainer.engine.remaining_steps == 0
            assert trainer.engine.plan.steps == EPOCHS * SIZE // BATCH
            assert (trainer.engine._training.release.ledger.count == EPOCHS).all()
            weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-4)

    def test_the_schedule_is_in_the_plan(self, hf, tmp_path):
        trainer = hf_trainer(hf, tmp_path, bert(hf), lr_scheduler_type="linear", weight_decay=0.0)
        trainer.train()
        rates = np.array([RATE * ((6 - t) / 6) for t in range(6)])
        assert trainer.engine.plan.workload == ap.Workload.sgd(6, learning_rates=rates)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)

    def test_adam_and_a_plan_in_the_middle_of_an_epoch(self, hf, tmp_path):
        trainer = hf_trainer(hf, tmp_path, bert(hf), optim="adamw_torch", num_train_epochs=1.5)
        with pytest.warns(UserWarning, match="AdamW is not linear"):
            trainer.train()
        assert trainer.engine.plan.steps == 5
        assert trainer.engine.remaining_steps == 0
        assert sorted(set(trainer.engine._training.release.ledger.count)) == [1, 2]

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"max_grad_norm": 1.0}, "max_grad_norm"),
            ({"gradient_checkpointing": True}, "gradient_checkpointing"),
            ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
            ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ],
    )
    def test_refused(self, hf, tmp_path, options, reason):
        with pytest.raises(ValueError, match=reason):
            hf_trainer(hf, tmp_path, bert(hf), **options)

    def test_going_on_from_a_checkpoint_is_refused(self, hf, tmp_path):
        with pytest.raises(ValueError, match="resume_from_checkpoint"):
            hf_trainer(hf, tmp_path, bert(hf)).train(resume_from_checkpoint=True)

    def test_a_loss_of_the_batch_is_refused(self, hf, tmp_path):
        trainer = hf_trainer(hf, tmp_path, bert(hf))
        trainer.example_losses = lambda model, inputs: model(**inputs).loss
        with pytest.raises(ValueError, match="for 8 examples"):
            trainer.train()
        assert trainer.engine.remaining_steps == 6

    def test_other_labels_need_another_loss(self, hf, tmp_path):
        data = [{**e, "labels": float(e["labels"])} for e in sentences()]
        with pytest.raises(ValueError, match="override"):
            hf_trainer(hf, tmp_path, bert(hf), dataset=data).train()


# Per-example gradients of transformers

LENGTH, VOCABULARY, CLASSES = 7, 40, 3
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
DROP = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ADAPTED = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "llama": ["q_proj", "v_proj", "down_proj"],
}  # GPT-2's are Conv1D
ADAPTED |= {"bert": ["query", "value", "dense"], "vit": "all-linear"}


def transformer(hf, kind, lora=False):
    """With random weights and dropout."""
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {
            "vocab_size": VOCABULARY,
            "n_positions": 16,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
        }
        model = hf.GPT2LMHeadModel(
            hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        )  # dropout is 0.1
    elif kind == "llama":
        sizes = SMALL | {
            "vocab_size": VOCABULARY,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16,
        }
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, attention_dropout=0.1))
    elif kind == "bert":
        sizes = SMALL | {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 16,
            "num_labels": CLASSES,
        }
        model = hf.BertForSequenceClassification(hf.BertConfig(**sizes, **DROP))
    else:
        sizes = SMALL | {"image_size": 8, "patch_size": 4, "num_labels": CLASSES}
        model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, **DROP))
    if not lora:
        return model
    peft = pytest.importorskip("peft", reason="needs the extra antiphase[huggingface]")
    options = {
        "r": 2,
        "lora_dropout": 0.1,
        "target_modules": ADAPTED[kind],
        "fan_in_fan_out": kind == "gpt2",
    }
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.1)  # with zeros A would have no gradient
    return adapted


def transformer_data(kind, size=SIZE):
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(size):
        if kind == "vit":
            inputs = {"pixel_values": torch.randn(3, 8, 8, generator=generator)}
        else:
            mask = torch.ones(LENGTH, dtype=torch.long)
            mask[LENGTH - i % 3 :] = 0
            inputs = {
                "input_ids": torch.randint(VOCABULARY, (LENGTH,), generator=generator),
                "attention_mask": mask,
            }
        labels = inputs["input_ids"] if kind in ("gpt2", "llama") else torch.tensor(i % CLASSES)
        made.append({**inputs, "labels": labels})
    return made


def example_losses(logits, labels):
    """The loss of each example: of its label, or the mean over its tokens."""
    each = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
    return each.flatten(1).mean(1) if each.ndim > 1 else each


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit"])
class TestTransformers:
    def private(self, hf, kind, lora, mode, clip=CLIP):
        model = transformer(hf, kind, lora)
        engine = engine_for()
        loader = DataLoader(transformer_data(kind), batch_size=BATCH, shuffle=True)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            data_loader=loader,
            noise_multiplier=1.0,
            target_delta=1e-5,
            max_grad_norm=clip,
            epochs=EPOCHS,
            grad_sample_mode=mode,
        )
        return engine, model, made

    def backward(self, made, mode, batch):
        """The private backward pass."""
        inputs, labels = {n: t for n, t in batch.items() if n != "labels"}, batch["labels"]
        logits = made[0](**inputs).logits
        if mode == "ghost":
            made[2](logits.movedim(-1, 1), labels).backward()
        else:
            example_losses(logits, labels).mean().backward()

    def test_the_gradient_check_passes(self, hf, kind, lora, mode, monkeypatch, shown):
        """With dropout, within a second or two steps; training works after it."""
        taken, check = [], wrapping.check_gradients

        def timed(*args):
            start = time.perf_counter()
            found = check(*args)
            taken.append(time.perf_counter() - start)
            return found

        monkeypatch.setattr(wrapping, "check_gradients", timed)
        engine, model, made = self.private(hf, kind, lora, mode)
        assert engine._training.unchecked is None
        before = copy.deepcopy(model)
        start = time.perf_counter()
        for _, batch in zip(range(2), made[-1], strict=False):
            made[1].zero_grad()
            self.backward(made, mode, batch)
            made[1].step()
        steps = time.perf_counter() - start
        assert moved(before, model)
        name = f"gradient check of {kind}{' with LoRA' if lora else ''}, {mode}"
        shown(name, f"{taken[0]:.3f} s", f"≤ 1 s or two steps ({steps:.3f} s)")
        assert taken[0] < max(1.0, steps)

    @pytest.mark.parametrize("clip", [0.05, 100.0], ids=["all clipped", "none clipped"])
    def test_the_sum_is_that_of_clipped_batches_of_one(self, hf, kind, lora, mode, clip, shown):
        """In float64, one example at a time, dropout off: to 1e-3 of the sum."""
        _, model, made = self.private(hf, kind, lora, mode, clip)
        batch = next(iter(made[-1]))
        model.eval()
        made[1].zero_grad()
        with made[0].recorder.always_on():
            self.backward(made, mode, batch)
        made[1].gather()
        found = {
            name: p.summed_grad.double() for name, p in model.named_parameters() if p.requires_grad
        }
        made[0].disable_hooks()
        exact = transformer(hf, kind, lora)
        exact.load_state_dict(model.state_dict())
        exact = exact.double().eval()
        trained = {name: p for name, p in exact.named_parameters() if p.requires_grad}
        sums = {name: torch.zeros_like(p) for name, p in trained.items()}
        for i in range(BATCH):
            one = {
                n: t[i : i + 1].double() if t.is_floating_point() else t[i : i + 1]
                for n, t in batch.items()
            }
            labels = one.pop("labels")
            loss = example_losses(exact(**one).logits, labels).sum()
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
            gradients = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(trained.values(), gradients, strict=True)
            ]
            norm = torch.sqrt(sum((g**2).sum() for g in gradients))
            for name, g in zip(trained, gradients, strict=True):
                sums[name] += g * min(1.0, clip * (1 - made[1].clip_margin) / float(norm))
        error = torch.sqrt(sum(((found[n] - s) ** 2).sum() for n, s in sums.items()))
        scale = torch.sqrt(sum((s**2).sum() for s in sums.values()))
        assert scale > 0
        clipped = "clipped" if clip < 1 else "not clipped"
        name = f"sum of {kind}{' with LoRA' if lora else ''}, {mode}, {clipped}"
        shown(name, f"{float(error / scale):.1e}", "≤ 1e-3")
        assert error <= 1e-3 * scale
