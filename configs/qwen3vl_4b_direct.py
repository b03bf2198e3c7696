"""Direct input of Qwen3-VL-4B on MMLongBench-Doc: the pages in one prompt, no tools, no memory.

[paper]: stated there (section 4). [precursor]: not stated; from the first author's public
precursor of the method. [chosen]: neither says. This run was not made here. Policy and reader
are servers; --config.data.root names the data set's folder.
"""

import ml_collections

from configs import eval_mmlongbench


def get_config() -> ml_collections.ConfigDict:
    c = eval_mmlongbench.get_config()
    c.run_dir = "runs/qwen3vl_4b_direct"
    c.setting = "direct"
    c.extractor = "rule"  # [chosen]; the paper's judge extracts with GPT-4o
    c.data.max_pixels = 768 * 594  # long edge 768 at A4 [precursor]
    c.policy.checkpoint = "http://localhost:8000/v1"
    c.policy_server.model = "Qwen/Qwen3-VL-4B-Instruct"  # [paper]
    c.reader.checkpoint = "http://localhost:8001/v1"
    c.reader_server.model = "Qwen/Qwen3-14B"  # [paper]
    c.rollout.temperature = 0.7  # [precursor]
    return c
