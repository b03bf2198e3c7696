"""The agent over LongDocURL: DIR with one .jsonl file, page images in pages/ or PDFs in documents/.

    python -m awm_jax evaluate --config=configs/eval_longdocurl.py --config.data.root=DIR

The agent searches the whole document; the official evaluation shows a window of 30 pages. Page
images have no text for the search by words: where there are PDFs, they are taken.
"""

import ml_collections

from configs import eval_mmlongbench


def get_config() -> ml_collections.ConfigDict:
    c = eval_mmlongbench.get_config()
    c.run_dir = "runs/eval_longdocurl"
    c.data.dataset = "longdocurl"
    return c
