"""The step of TRL 1.16.0: `GRPOTrainer.compute_loss` over the Qwen3 of transformers."""

import pathlib

import numpy as np
import torch
import transformers
import trl_trainer
import worker


def prepare(folder):
    torch.set_num_threads(1)
    batch = dict(np.load(pathlib.Path(folder) / "batch.npz"))
    rows, completion = batch["completion_ids"].shape
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = trl_trainer.make_trainer(
        model,
        rows=rows,
        group_size=rows,
        max_completion_length=completion,
        beta=0.0,
        loss_type="grpo",
    )
    prompt, answer = (torch.tensor(batch[key]).long() for key in ("prompt_ids", "completion_ids"))
    mask = torch.tensor(batch["mask"]).long()
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": answer,
        "completion_mask": torch.ones_like(answer),
        "tool_mask": mask,
        "advantages": torch.tensor(batch["advantages"]),
        "old_per_token_logps": torch.tensor(batch["old_log_probs"]),
        "num_items_in_batch": mask.sum(),
    }

    def step():
        trainer.model.zero_grad(set_to_none=True)
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        return loss

    loss = step()
    squares = sum(p.grad.double().square().sum() for p in trainer.model.parameters())
    facts = {
        "versions": worker.versions("trl", "torch", "transformers", "accelerate"),
        "loss": loss.item(),
        "grad_norm": float(squares.sqrt()),
        "entropy": trainer._metrics["train"]["entropy"][-1],
        "threads": torch.get_num_threads(),
    }
    return step, facts


if __name__ == "__main__":
    worker.serve(prepare)
