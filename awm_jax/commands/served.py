"""Who plays the policy or the reader: a server by its URL, or a checkpoint by its folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from awm_jax import servers
from awm_jax.documents import embed_served
from awm_jax.documents.embed_served import Embedder
from awm_jax.policy_served import make_served_generate
from awm_jax.servers import Reply, Server
from awm_jax.types import Generate, Prompt

# Field of a request that turns Qwen3's thinking off on vLLM and SGLang.
THINKING_OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def find_server(url: str, model: str = "", key_variable: str | None = None, **settings) -> Server:
    """The server at `url`, with the only model that it has where none is named.

    Args:
      url: its base URL.
      model: as the server calls it, empty to ask the server.
      key_variable: see `servers.Server`, and there for further settings.

    Raises:
      ValueError: it has several models, or its key is not set.
      ServerError: it does not answer.
    """
    if model:
        return Server(url, model, key_variable, **settings)
    found = servers.served_models(Server(url, "any", key_variable, **settings))
    if len(found) != 1:
        raise ValueError(f"{url} serves {found}: name one of them")
    return Server(url, found[0], key_variable, **settings)


def served_generate(
    url: str,
    section: Mapping[str, Any],
    *,
    thinking_off: bool,
    on_reply: Callable[[Prompt, Reply], None] | None = None,
) -> tuple[Generate, Server]:
    """A server as `Generate`, from a section of a config, and which it is.

    Args:
      url: the server's base URL.
      section: what `find_server` takes; `max_tokens`, `tools` and `max_images` of
        `make_served_generate`; `hosted`, since such services are not told to leave thinking off;
        and `extra`, further fields of the request as a JSON object, null to take one out.
      thinking_off: whether Qwen3's thinking is turned off, as for the reader.
      on_reply: see `make_served_generate`.

    Raises:
      ValueError: see `find_server`; or `extra` is no JSON object.
      ServerError: see `find_server`.
    """
    settings = dict(section)
    fields = _json_object(settings.pop("extra"))
    hosted = settings.pop("hosted")
    of_generate = {name: settings.pop(name) for name in ("max_tokens", "tools", "max_images")}
    server = find_server(url, **settings)
    extra = {**(THINKING_OFF if thinking_off and not hosted else {}), **fields}
    return make_served_generate(server, **of_generate, extra=extra, on_reply=on_reply), server


def served_embedder(section: Mapping[str, Any]) -> Embedder | None:
    """The embedder of pages and queries that a config names; None for search by words.

    Args:
      section: `kind`, "lexical", "jina" (hosted), "jina_vllm" or "text"; `url`, `model` and
        `key_variable` of its server, and what the embedder of this kind takes.

    Raises:
      ValueError: the kind is none of these; see `find_server`.
      ServerError: see `find_server`.
    """
    kind = section["kind"]
    if kind == "lexical":
        return None
    if kind not in ("jina", "jina_vllm", "text"):
        raise ValueError(f"embedder {kind!r}: expected lexical, jina, jina_vllm or text")
    server = find_server(
        section["url"],
        section["model"],
        section["key_variable"],
        concurrency=section["concurrency"],
    )
    if kind == "jina":
        return embed_served.jina_hosted(server, multi=section["multi"], size=section["size"])
    if kind == "text":
        prefixes = {name: section[name] for name in ("query_prefix", "page_prefix")}
        return embed_served.text_embedder(server, size=section["size"], **prefixes)
    projector = embed_served.load_projector(section["projector"]) if section["multi"] else None
    return embed_served.jina_vllm(server, projector=projector, size=section["size"])


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"extra {text!r}: expected a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"extra {text!r}: expected a JSON object")
    return found


@dataclasses.dataclass
class Costs:
    """What the server counted for each rollout, added up from any thread.

    Attributes:
      by_seed: a rollout's seed -> prompt tokens, completion tokens and seconds. A prompt's seed
        is its rollout's with the turn behind it.
    """

    by_seed: dict[tuple[int, ...], tuple[int, int, float]] = dataclasses.field(default_factory=dict)

    def __call__(self, prompt: Prompt, reply: Reply) -> None:
        # One rollout asks one thing at a time, so no two threads add to one entry.
        seed = prompt.seed[:-1]
        spent = self.by_seed.get(seed, (0, 0, 0.0))
        new = (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.seconds)
        self.by_seed[seed] = tuple(map(sum, zip(spent, new, strict=True)))
