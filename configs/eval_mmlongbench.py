"""The agent over MMLongBench-Doc's own files: DIR/samples.json and DIR/documents/.

    python -m awm_jax evaluate --config=configs/eval_mmlongbench.py --config.data.root=DIR

The tiny policy reads next to nothing here. Name another checkpoint, or a server with the OpenAI
API, and let it see more of a page:

    --config.policy.checkpoint=http://localhost:8000/v1 --config.reader.checkpoint=http://...
    --config.data.max_pixels=1048576 --config.extractor=rule --config.rollout.temperature=0

Keys are read from the environment: --config.policy_server.key_variable names the variable.
"""

import ml_collections
from ml_collections import config_dict

from configs import tiny_world


def server(max_tokens: int) -> ml_collections.ConfigDict:
    """How a server is asked; it counts where a checkpoint is a URL."""
    c = ml_collections.ConfigDict()
    # Empty: the only one that the server has.
    c.model = ""
    c.key_variable = config_dict.placeholder(str)
    c.timeout_s = 300.0
    c.retries = 4
    c.concurrency = 64
    c.requests_per_minute = config_dict.placeholder(float)
    c.max_tokens = max_tokens
    # "native" for hosted models that are not trained on Qwen's format.
    c.tools = "text"
    c.max_images = config_dict.placeholder(int)
    # Hosted services refuse the field that turns Qwen3's thinking off.
    c.hosted = False
    # Further fields of the request, as JSON; null takes one out.
    c.extra = "{}"
    return c


def get_config() -> ml_collections.ConfigDict:
    base = tiny_world.get_config()
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/eval_mmlongbench"
    c.seed = 0
    # "agent"; "evidence_given" is the agent whose search finds all gold pages; "rag" answers at
    # once from the pages that match the question, "direct" from all.
    c.setting = "agent"
    # Between two writes to the disk. What is lost when a run is killed is asked again.
    c.rollouts_at_once = 512
    # Who takes the short answer out of a model's sentence: "rule", or a server's URL, as the
    # benchmarks do with GPT-4o, or a Qwen3 checkpoint's folder.
    c.extractor = "none"
    c.extractor_server = ml_collections.ConfigDict()
    c.extractor_server.model = ""
    c.extractor_server.key_variable = config_dict.placeholder(str)
    # Hosted services get the benchmark's own sequence of messages.
    c.extractor_server.hosted = False

    c.data = ml_collections.ConfigDict()
    c.data.dataset = "mmlongbench"
    c.data.root = config_dict.placeholder(str)
    c.data.dpi = 144.0
    # The tiny policy's context is short: pages of at most 96 x 128 pixels, 12 tokens.
    c.data.max_pixels = 96 * 128
    # A folder that keeps rendered pages for other runs; none where it is empty.
    c.data.page_cache = ""
    c.data.samples = 1

    # What finds pages: "lexical" (BM25 over the text layer), "jina" (Jina v4, hosted), "jina_vllm",
    # or "text", any embedding server with the OpenAI API over the text layer.
    c.embedder = ml_collections.ConfigDict()
    c.embedder.kind = "lexical"
    c.embedder.url = ""
    c.embedder.model = ""
    c.embedder.key_variable = config_dict.placeholder(str)
    c.embedder.concurrency = 16
    # Numbers of a single vector; with `multi` a vector a token of 128, compared by MaxSim.
    c.embedder.size = 2048
    c.embedder.multi = False
    # For "jina_vllm" with `multi`: the .npy file of the multi-vector projector.
    c.embedder.projector = ""
    # For "text".
    c.embedder.query_prefix = ""
    c.embedder.page_prefix = ""

    c.policy = base.policy
    c.policy_server = server(max_tokens=1024)
    c.reader = base.reader
    c.reader_server = server(max_tokens=256)
    c.rollout = base.rollout
    c.sampler = base.sampler
    # Words of other worlds are spelt byte by byte.
    c.sampler.prompt_buckets = (512, 1024)
    return c
