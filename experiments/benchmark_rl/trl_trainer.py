"""A GRPOTrainer of TRL over any model, for its loss alone: no data, no training loop."""

import tempfile

import datasets
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer


def make_trainer(model, *, rows, group_size, reward=lambda completions, **_: [0.0] * 8, **options):
    """The trainer in training mode, with `options` over the defaults of `GRPOConfig`.

    Gradient checkpointing is off: it would compute every layer twice.
    """
    words = tokenizers.Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1, "a": 2}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>"
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        num_generations=group_size,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        **options,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * rows),
        processing_class=tokenizer,
    )
    trainer.model.train()
    # Set by the training loop.
    trainer.current_gradient_accumulation_steps = 1
    return trainer
