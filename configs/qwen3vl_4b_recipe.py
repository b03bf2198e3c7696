"""The paper's data: Doc-750K to 994 SFT trajectories and 226 mixed groups for RL.

[paper]: stated there (section 4). [precursor]: not stated; from the first author's public
precursor of the method. [chosen]: neither says; ours, not tuned. This run was not made here.

Teacher, policy and reader are servers with the OpenAI API (SGLang, vLLM or hosted).
"""

import ml_collections
from ml_collections import config_dict


def server(
    model: str, url: str, *, samples: int, max_tokens: int, tools: str
) -> ml_collections.ConfigDict:
    """Who is asked, how often and for how much."""
    c = ml_collections.ConfigDict()
    c.kind = "server"
    c.samples = samples
    c.temperature = 0.7  # [precursor]
    c.max_tokens = max_tokens
    c.tools = tools
    c.extra = ml_collections.ConfigDict()
    c.server = ml_collections.ConfigDict()
    c.server.model = model
    c.server.base_url = url
    # The name of an environment variable, not the key.
    c.server.key_variable = config_dict.placeholder(str)
    c.server.timeout_s = 300.0
    c.server.concurrency = 32
    return c


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.run_dir = "runs/qwen3vl_4b_recipe"
    c.seed = 0
    # "groups" once `sft` has made a policy and that is served.
    c.until = "split"
    c.at_once = 64
    c.most_failures = 0.01  # [chosen]

    c.data = ml_collections.ConfigDict()
    c.data.dataset = "doc750k"  # [paper]
    c.data.root = "data/doc750k"
    # The rendered files that are in English; which of them the paper took is not known.
    c.data.files = "**/generated_multi_qa_rendered*en*.jsonl"  # [chosen]
    c.data.dpi = 144.0  # page images keep their own
    c.data.max_pixels = 768 * 594  # long edge 768 at A4 [precursor]
    # A folder that keeps rendered pages for other runs; none where it is empty.
    c.data.page_cache = ""
    # None: a folder of the run directory; a URL is a Qdrant server.
    c.index_at = config_dict.placeholder(str)

    # Disjoint from both [paper].
    c.evaluation_sets = ml_collections.ConfigDict()
    for name in ("mmlongbench", "longdocurl"):
        c.evaluation_sets[name] = ml_collections.ConfigDict()
        c.evaluation_sets[name].dataset = name
        c.evaluation_sets[name].root = f"data/{name}"

    c.questions = ml_collections.ConfigDict()
    c.questions.count = 2000  # [paper]
    c.questions.seed = 0
    c.questions.drop_same_text = False  # [chosen]: "What is the title?" can be asked of any

    c.rollout = ml_collections.ConfigDict()
    c.rollout.max_steps = 15  # [paper]
    c.rollout.top_k = 3  # [paper]
    c.rollout.max_words = 40  # [paper]
    c.rollout.context = "memory"  # [chosen]
    c.rollout.temperature = 0.7  # [precursor]
    # Seconds that a search, or the drawing of a page, may take before its rollout ends.
    c.rollout.tool_timeout_s = 300.0

    # One rollout a question [chosen].
    c.teacher = server(
        "kimi-k2.5",  # [paper]
        "https://api.moonshot.ai/v1",
        samples=1,
        max_tokens=4096,  # [precursor]
        tools="native",
    )
    c.teacher.server.key_variable = "MOONSHOT_API_KEY"
    c.difficulty = server(
        "Qwen/Qwen3-VL-4B-Instruct",  # [paper]
        "http://localhost:8000/v1",
        samples=4,  # [chosen]
        max_tokens=512,  # [chosen]
        tools="text",
    )

    c.split = ml_collections.ConfigDict()
    c.split.count = 994  # [paper]
    c.split.seed = 0
    c.split.edges = (0.0, 0.25, 0.5, 0.75, 1.0)  # [chosen]

    # The policy that configs/qwen3vl_4b_sft.py exports; a group of GRPO is 8 [paper].
    c.groups = server(
        "runs/qwen3vl_4b_sft/policy",
        "http://localhost:8000/v1",
        samples=8,
        max_tokens=512,
        tools="text",
    )

    # Reader and training scorer in one [paper].
    c.reader = server(
        "Qwen/Qwen3-14B", "http://localhost:8001/v1", samples=1, max_tokens=128, tools="text"
    )
    c.reader.temperature = 0.0
    c.reader.extra.chat_template_kwargs = {"enable_thinking": False}
    return c
