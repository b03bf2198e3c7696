"""Config sections -> the objects that a command works with."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from awm_jax.datasets import longdocurl, mmlongbench, steps, tiny_world
from awm_jax.documents import embed_served, exact, index, pdf, workers
from awm_jax.documents.embed_served import Embedder
from awm_jax.judging import reader, training_scorer
from awm_jax.models import hf, lora
from awm_jax.models.processor import Processor, load_processor
from awm_jax.models.qwen3_vl import Model
from awm_jax.policy import PageFeatures, PolicyGenerate, make_generate, page_positions
from awm_jax.training import batch, grpo, hosts, sharding
from awm_jax.training.batch import PackShape, PolicyBatch, TrainingSequence
from awm_jax.types import Document, Question, Render, Search, Trajectory, Verdict

# The tiny world's answers have the formats of MMLongBench-Doc, so one scorer serves both.
SCORER = "mmlongbench rules, official"


@dataclasses.dataclass(frozen=True)
class Library:
    """Questions and what the agent's tools need to work on their documents.

    Attributes:
      questions: all of the data set's. One whose document could not be opened stays: its
        rollouts end with a tool error and are counted.
      search: the search tool's.
      render: likewise.
      page_count: pages of a document by its id.
      provenance: what the data are and what is odd about them, one line each.
    """

    questions: tuple[Question, ...]
    search: Search
    render: Render
    page_count: Callable[[str], int]
    provenance: tuple[str, ...]


def page_settings(data: ml_collections.ConfigDict) -> dict[str, Any]:
    """What decides which pages a rollout is shown; where the files lie does not."""
    free = ("root", "samples", "documents", "page_cache")
    return {name: value for name, value in data.to_dict().items() if name not in free}


def make_render(data: ml_collections.ConfigDict, documents: Mapping[str, Document]) -> Render:
    """Pages at the data's `dpi` and `max_pixels`, kept in its folder `page_cache` if it has one."""
    return pdf.make_render(
        documents,
        dpi=data.dpi,
        max_pixels=data.max_pixels,
        cache_folder=data.page_cache or None,
        run=workers.run,
    )


@contextlib.contextmanager
def open_library(
    data: ml_collections.ConfigDict,
    *,
    index_at: str | pathlib.Path,
    embedder: Embedder | None = None,
) -> Iterator[Library]:
    """Opens the data set's documents and indexes those that are not in the index yet.

    Args:
      data: `dataset`, `root`, `dpi`, `max_pixels`, `page_cache` and, for the tiny world, what to
        make. The data set "recipe" is a folder with questions.jsonl and documents/, such as a
        step of the recipe leaves.
      index_at: a folder for embedded Qdrant, or the URL of a server; a folder with `embedder`.
      embedder: searches by its vectors, which are kept in `index_at`, instead of by words.

    Raises:
      ValueError: there is no question, or no document that can be opened.
      ServerError: a page could not be embedded.
    """
    root = pathlib.Path(data.root)
    match data.dataset:
        case "tiny_world":
            questions = tiny_world.make_world(
                root, data.split, seed=data.seed, documents=data.documents
            )
            notes = [f"tiny world, split {data.split!r}, seed {data.seed}"]
        case "mmlongbench":
            questions, report = mmlongbench.load(root)
            notes = str(report).splitlines()
        case "longdocurl":
            questions, report = longdocurl.load(root)
            notes = str(report).splitlines()
        case "recipe":
            questions = steps.read_questions(root / "questions.jsonl")
            notes = [f"questions of {root}"]
        case other:
            raise ValueError(
                f"dataset {other!r}: expected tiny_world, mmlongbench, longdocurl or recipe"
            )
    names = [question.document for question in questions]
    if data.dataset == "longdocurl":
        documents, failures = _open_longdocurl(root, names)
    else:
        documents, failures = pdf.open_documents(root / "documents", names, run=workers.run)
    if not documents:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(failures.items())[:5])
        raise ValueError(
            f"{root}: found {len(questions)} questions and no document that can be opened"
            + (f" ({why})" if why else "")
        )
    notes.append(f"{len(questions)} questions on {len(documents)} documents")
    notes += [f"cannot be opened: {name}: {why}" for name, why in failures.items()]
    notes += [
        f"{document.id}: {warning}"
        for document in documents.values()
        for warning in document.warnings
    ]
    with contextlib.ExitStack() as stack:
        if embedder is None:
            client = stack.enter_context(contextlib.closing(index.open_client(index_at)))
            report = index.build_index(client, list(documents.values()))
            search = index.make_search(client, list(documents.values()))
        else:
            report = f"{embedder.name}, all pages of a document compared"
            search = exact.make_vector_search(
                embed_served.kept(embedder, index_at),
                list(documents.values()),
                # What the policy is shown may be smaller than what the embedder reads.
                render=pdf.make_render(
                    documents,
                    dpi=data.dpi,
                    max_pixels=embed_served.JINA_MAX_PIXELS,
                    cache_bytes=0,
                    run=workers.run,
                ),
            )
        yield Library(
            questions=tuple(questions),
            search=search,
            render=make_render(data, documents),
            page_count=lambda name: documents[name].page_count,
            provenance=(*notes, f"index: {report}"),
        )


def _open_longdocurl(
    root: pathlib.Path, names: Iterable[str]
) -> tuple[dict[str, Document], dict[str, str]]:
    """LongDocURL's documents, whose ids have no suffix: PDFs where they lie, else page images.

    Page images have no text, so that a search by words finds nothing on them.
    """
    names = dict.fromkeys(names)
    files = {name: root / "documents" / f"{name}.pdf" for name in names}
    documents, failures = pdf.open_documents(
        root / "pages", (name for name in names if not files[name].is_file()), run=workers.run
    )
    for name, path in files.items():
        if path.is_file():
            try:
                documents[name] = pdf.open_document(path, id=name, run=workers.run)
            except pdf.DocumentError as error:
                failures[name] = str(error)
    return documents, failures


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The policy's model, and how it is asked and trained.

    Attributes:
      model: as it is trained, over all processes' devices.
      own_model: as it samples, on the devices of this process.
      params: the warm start.
      features: what the vision tower makes of pages. The tower is frozen, so it holds for all
        versions of the policy.
      sampler: keyword arguments of `policy.make_generate`, of this process.
      mesh: where the parameters are spread.
      dtype: the type in which the model computes.
    """

    model: Model
    own_model: Model
    params: Mapping[str, Any]
    processor: Processor
    features: PageFeatures
    sampler: Mapping[str, Any]
    mesh: Mesh
    dtype: str

    @property
    def size(self) -> int:
        return _size(self.params)

    @property
    def banned(self) -> np.ndarray:
        """`[vocab]` bool, True on ids that are never sampled."""
        return self.processor.banned(self.model.config.text.vocab_size)

    def generate(self, params: Mapping[str, Any], *, version: int) -> PolicyGenerate:
        """The policy with these parameters, which are copied to where sampling wants them."""
        return make_generate(
            self.own_model,
            _for_sampling(params, self.mesh, self.dtype),
            self.processor,
            policy_version=version,
            page_features=self.features,
            **self.sampler,
        )

    def pack(
        self, trajectories: Iterable[tuple[Sequence[TrainingSequence], float]], shape: PackShape
    ) -> Iterator[PolicyBatch]:
        """Micro-batches of the sequences of all processes' trajectories.

        Args:
          trajectories: this process's, with their advantages.
          shape: of all processes together.
        """
        config, shape = self.model.config, hosts.own_shape(shape)
        feature_shape = (1 + len(config.vision.deepstack_visual_indexes), config.text.hidden_size)
        packed = batch.pack(
            trajectories,
            shape,
            position_ids=functools.partial(page_positions, self.processor),
            page_features=self.features,
            feature_shape=feature_shape,
            image_token_id=self.processor.image_token_id,
            pad_id=self.processor.pad_id,
        )
        return hosts.global_batches(
            packed,
            batch.empty_batch(shape, feature_shape, self.processor.pad_id),
            self.mesh,
            image_token_id=self.processor.image_token_id,
        )


def load_policy(
    section: ml_collections.ConfigDict,
    sampler: ml_collections.ConfigDict,
    mesh: Mesh | None = None,
    *,
    rows: int | None = None,
    remat: bool = False,
    attention: str = "xla",
    pages_at_once: int = 64,
) -> Policy:
    """The policy of a checkpoint, with images, spread over the mesh.

    Args:
      section: `checkpoint` and `dtype`, the type in which it computes.
      sampler: keyword arguments of `policy.make_generate`, rows of all processes together.
      mesh: made by `sharding.make_mesh`; None for one device.
      rows: of a training micro-batch, where it is trained.
      remat, attention: see `awm_jax.models.qwen3.Model`.
      pages_at_once: `at_once` of `awm_jax.models.encode.encode_images`.
    """
    mesh = sharding.make_mesh() if mesh is None else mesh
    sharding.check_mesh(mesh, hf.load_config(section.checkpoint), rows=rows)
    model = hf.load_model(
        section.checkpoint,
        dtype=section.dtype,
        remat=remat,
        attention=attention,
        **sharding.model_options(mesh),
    )
    processor = load_processor(hf.checkpoint_directory(section.checkpoint))
    if model.config.vision is None:
        raise ValueError(f"{section.checkpoint}: the policy reads pages; found a text model")
    own_model, visual = _own_model(model, mesh), {"visual": model.params["visual"]}
    features = PageFeatures(
        own_model, hosts.own_copy(visual, mesh), processor, at_once=pages_at_once
    )
    return Policy(
        model,
        own_model,
        model.params,
        processor,
        features,
        hosts.own_sampler(sampler.to_dict()),
        mesh,
        section.dtype,
    )


def _own_model(model: Model, mesh: Mesh) -> Model:
    """The model as it computes on the devices of this process alone."""
    options = sharding.model_options(hosts.own_mesh(mesh))
    del options["place"]
    return dataclasses.replace(model, **options) if jax.process_count() > 1 else model


def _for_sampling(params: Mapping[str, Any], mesh: Mesh, dtype: str) -> Mapping[str, Any]:
    """A copy in the sampler's type, gathered, on the devices of this process."""
    return hosts.own_copy(sharding.for_sampling(params, mesh=mesh, dtype=dtype), mesh)


def split_frozen(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is not trained, the vision tower, and what is."""
    return {"visual": params["visual"]}, {k: v for k, v in params.items() if k != "visual"}


def trained_part(
    policy: Policy, *, rank: int, alpha: float, projections: Sequence[str], seed: int
) -> tuple[Mapping[str, Any], Mapping[str, Any], Callable[..., Mapping[str, Any]]]:
    """What is not trained, what is, and the function that makes the policy's parameters of both.

    Args:
      policy: the warm start.
      rank: of LoRA's adapters, which are then all that is trained; 0 for the whole decoder.
      alpha, projections: see `awm_jax.models.lora`; not read at rank 0.
      seed: the adapters' numbers depend on it.

    Raises:
      ValueError: as `lora.init_adapters`.
    """
    frozen, decoder = split_frozen(policy.params)
    if rank == 0:
        return frozen, decoder, grpo.joined
    adapters = lora.init_adapters(
        decoder, jax.random.key(seed), rank=rank, projections=tuple(projections)
    )
    laid = sharding.shardings(adapters, sharding.placement(policy.mesh))
    merge = jax.jit(functools.partial(lora.merge, alpha=alpha))
    return policy.params, jax.device_put(adapters, laid), merge


def export(
    policy: Policy, params: Mapping[str, Any], path: pathlib.Path, *, assets: str, dtype: str
) -> None:
    """Writes the parameters in Hugging Face's form; a kill leaves all of it or nothing.

    All processes take part, the first writes; each holds all parameters on its host meanwhile.

    Args:
      policy: of the parameters.
      params: all of them.
      path: a folder that does not exist yet.
      assets: the checkpoint whose tokenizer and processor files are copied.
      dtype: of the written tensors.
    """
    new = path.with_name(path.name + ".new")
    typed = hosts.whole(jax.tree.map(lambda leaf: leaf.astype(dtype), params))
    with hosts.first_alone(str(path)):
        if hosts.first():
            shutil.rmtree(new, ignore_errors=True)
            hf.save_model(policy.model, typed, new, assets=hf.checkpoint_directory(assets))
            new.rename(path)


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """The frozen reader and the rule scorer: trajectories -> verdicts.

    Attributes:
      size: number of parameters.
      judge: reads each terminal memory and scores both answers.
      scorer: names the scorer and its mode.
    """

    size: int
    judge: Callable[[Sequence[Trajectory]], list[Verdict]]
    scorer: str


def load_reader(section: ml_collections.ConfigDict, mesh: Mesh | None = None) -> Reader:
    """The frozen reader of a checkpoint, with MMLongBench-Doc's rules as scorer.

    At rest it is spread over the whole mesh; while it reads, there is a copy as sampling wants it.
    Every process judges its own trajectories, and all of them judge at the same time.
    """
    mesh = sharding.make_mesh() if mesh is None else mesh
    sharding.check_mesh(mesh, hf.load_config(section.checkpoint))
    model = hf.load_model(section.checkpoint, dtype=section.dtype, **sharding.model_options(mesh))
    processor = load_processor(hf.checkpoint_directory(section.checkpoint))
    own_model, sampler = _own_model(model, mesh), hosts.own_sampler(section.sampler.to_dict())

    def judge(trajectories: Sequence[Trajectory]) -> list[Verdict]:
        generate = make_generate(
            own_model,
            _for_sampling(model.params, mesh, section.dtype),
            processor,
            enable_thinking=False,
            **sampler,
        )
        return training_scorer.judge(
            trajectories,
            read=functools.partial(reader.read_memories, generate, seed=(0,)),
            score=training_scorer.rule_scores,
            scorer=SCORER,
        )

    return Reader(_size(model.params), judge, SCORER)


def _size(params: Mapping[str, Any]) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
