"""HF transformers' `generate`, and its forward and backward pass."""

import sys

import torch
import transformers
import worker

torch.set_num_threads(1)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)


def complete(prompts, new, slots):
    """The cache grows with what is in it: `slots` do not count."""
    ids = torch.tensor(prompts)
    with torch.no_grad():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )


def gradient():
    """Loss and full gradient of 8 x 256 tokens."""
    ids = torch.tensor(worker.prompts(8, 256))
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return float(loss)


if __name__ == "__main__":
    worker.serve(complete, {"gradient": gradient}, ("torch", "transformers"))
