r"""The controlled memory comparison (the paper, section 2), over the records of an EP-given run.

    python -m awm_jax evaluate --config=configs/eval_mmlongbench.py --config.data.root=DIR \
        --config.setting=evidence_given --config.run_dir=runs/given ...
    python -m awm_jax controlled --config=configs/controlled_mmlongbench.py \
        --config.data.root=DIR --config.trajectories=runs/given/trajectories.jsonl \
        --config.writer.checkpoint=https://api.openai.com/v1

`policy` answers from each memory, `reader` and the rules judge. The paper's improved memories are
GPT-4o's.
"""

import ml_collections
from ml_collections import config_dict

from configs import eval_mmlongbench


def get_config() -> ml_collections.ConfigDict:
    c = eval_mmlongbench.get_config()
    c.run_dir = "runs/controlled_mmlongbench"
    c.trajectories = config_dict.placeholder(str)
    # From the original memory as well; the paper takes the agent's own final answers there.
    c.answer_anew = False
    c.writer = ml_collections.ConfigDict()
    # A server's URL.
    c.writer.checkpoint = config_dict.placeholder(str)
    c.writer_server = eval_mmlongbench.server(max_tokens=512)
    c.writer_server.model = "gpt-4o"
    c.writer_server.key_variable = "OPENAI_API_KEY"
    c.writer_server.hosted = True
    return c
