"""RAG top-3 of Qwen3-VL-4B on MMLongBench-Doc, without memory: `qwen3vl_4b_direct`, but for pages
that match the question [paper]. This run was not made here."""

import ml_collections

from configs import qwen3vl_4b_direct


def get_config() -> ml_collections.ConfigDict:
    c = qwen3vl_4b_direct.get_config()
    c.run_dir = "runs/qwen3vl_4b_rag"
    c.setting = "rag"
    return c
