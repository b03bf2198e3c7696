"""The tiny world's tokenizer: byte-level BPE that is trained on the world's own transcripts.

Numbers are split into digits. What never changes between transcripts (system prompt, tool
schemas, the shell of a tool call) is one token each, so that a context has some hundred tokens.
Any other text still has an encoding, byte by byte in the worst case.
"""

import json
import pathlib
import re
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END, PAD = "<|im_end|>", "<|endoftext|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
SPECIAL = (PAD, "<|im_start|>", END, VISION_START, VISION_END, "<|vision_pad|>", IMAGE, VIDEO)
# Qwen3 marks these as ordinary tokens: they stay when text is decoded.
MARKS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip

# Qwen2's rule: words with the space before them, single digits, runs of signs, line ends.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Shells of the transcripts. With their spaces they leave each river and attribute a single form.
_SHELLS = (
    "<|im_start|>user\n",
    "<|im_start|>user\nQuestion: ",
    "\n<|im_start|>assistant\n",
    "<think>\n\n</think>\n\n",
    "\n<|im_start|>user\n<tool_response>\n",
    "\n</tool_response>",
    '<tool_call>\n{"name": "search_pages", "arguments": {"query": "',
    '<tool_call>\n{"name": "update_memory", "arguments": {"source_page": ',
    ', "finding": "',
    '<tool_call>\n{"name": "answer", "arguments": {"answer": "',
    '"}}\n</tool_call>',
    "\nWorking memory:\n",
    "\nNotes:\n",
    "(empty)",
    "[page ",
    "\n[page ",
    "] ",
    "Page ",
    "Noted.",
    "Not answerable",
    "What is the ",
    "What are the ",
    " of ",
    "s of ",
    " and ",
    " is ",
    ", ",
)

CHAT_TEMPLATE = """\
{%- macro parts(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.text is defined -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set first = messages[0] if messages and messages[0].role == 'system' else none -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if first is not none -%}{{- parts(first.content) + '\\n\\n' -}}{%- endif -%}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and ' -}}
{{- 'arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": ' -}}
{{- '<function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}
{%- elif first is not none -%}
{{- '<|im_start|>system\\n' + parts(first.content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{- '<|im_start|>user\\n' + parts(message.content) + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- set text = parts(message.content or '') -%}{{- text -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{%- if text or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{%- if function.arguments is string -%}{{- function.arguments -}}
{%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + parts(message.content) + '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""


def train_tokenizer(
    transcripts: Iterable[str], openings: Iterable[str], *, merges: int
) -> tokenizers.Tokenizer:
    """A tokenizer for `transcripts` with one token for each of `openings`.

    Args:
      transcripts: chats as rendered text.
      openings: how transcripts begin, up to what differs between them.
      merges: at most how many pairs are merged.
    """
    shells = (*openings, *_SHELLS)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # The trainer does not know added tokens: what they will cover is cut out before.
    longest_first = sorted((*shells, *MARKS, *SPECIAL), key=len, reverse=True)
    cut = re.compile("|".join(map(re.escape, longest_first)))
    pieces = [piece for text in transcripts for piece in cut.split(text) if piece]
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([_added(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([_added(text, special=False) for text in (*MARKS, *shells)])
    return tokenizer


def _added(text: str, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(text, special=special, normalized=False)


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: pathlib.Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` as `transformers` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
