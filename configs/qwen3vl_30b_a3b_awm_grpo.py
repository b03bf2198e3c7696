"""AWM-GRPO on Qwen3-VL-30B-A3B: `qwen3vl_4b_awm_grpo` with a larger policy on 64 chips (v5p:4x4x4).

A plan, to be compiled with `plan`: the paper leaves this size open (Limitations) and no such run
was made. Hyper-parameters are those of 4B, not tuned for this size.
"""

import ml_collections

from configs import qwen3vl_4b_awm_grpo


def get_config() -> ml_collections.ConfigDict:
    c = qwen3vl_4b_awm_grpo.get_config()
    c.run_dir = "runs/qwen3vl_30b_a3b_awm_grpo"
    # What SFT would make of it; `plan` needs its shape alone.
    c.policy.checkpoint = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    # Four key/value heads, and 2 of the 128 experts a chip at rest.
    c.mesh.data = 1
    c.mesh.fsdp = 16
    c.mesh.tensor = 4
    return c
