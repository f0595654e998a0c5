"""Rules about the weights on the source: a shard that is short or missing loads, and answers rubbish.

vLLM itself only warns about an incomplete quantised checkpoint (facts/ascend-vllm.md 1.9). The facts are what
`observe/weights.py` reads from the headers of the files; the bytes of the tensors are the manifest's business.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity

MAX_HEADER = 100_000_000  # bytes; the safetensors library reads no longer one either
LFS_POINTER = int.from_bytes(b"version ", "little")  # what a pointer file of Git LFS begins with, read as a length
LOADED_BY = "model.safetensors.index.json"  # the one index that vLLM reads: it loads no shard that is not in it
NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors", re.DOTALL)
# `mtp.` of Qwen, `mtp_layers.` and `mtp_block.` of others; DeepSeek and GLM know theirs by its projection.
MTP = re.compile(r"(^|\.)mtp[^.]*\.|(^|\.)eh_proj\.")
SHOWN = 3


@dataclass(frozen=True)
class Shard:
    """A safetensors file. Paths are relative to the model's folder, sizes in bytes, links followed.

    `header`: the length the file gives for its header, None when it is too short to give one. `tensors`: begin and end
    of each, counted from the end of the header; None when the header cannot be read, and `trouble` says why.
    """

    path: str
    size: int
    header: int | None
    tensors: dict[str, tuple[int, int]] | None = None
    trouble: str | None = None

    @property
    def end(self) -> int:
        """Where the last tensor ends, and so the file has to."""
        return 8 + (self.header or 0) + max((end for _, end in (self.tensors or {}).values()), default=0)


@dataclass(frozen=True)
class Index:
    """Which shard, by path, holds a tensor; None when the file is no index. `total`: bytes of all, if it says."""

    path: str
    shards: dict[str, str] | None
    total: int | None = None


@dataclass(frozen=True)
class Weights:
    """All files of weights in a folder. `dangling`: links that lead nowhere; `others`: .bin, .pt and .gguf files."""

    shards: tuple[Shard, ...] = ()
    indexes: tuple[Index, ...] = ()
    dangling: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @cached_property
    def by_path(self) -> dict[str, Shard]:
        return {shard.path: shard for shard in self.shards}

    @cached_property
    def listed(self) -> frozenset[str]:
        """Every shard that an index names."""
        return frozenset(path for index in self.indexes for path in (index.shards or {}).values())

    def indexed(self, folder: str) -> bool:
        """Whether `folder` has an index, readable or not."""
        return any(posixpath.dirname(index.path) == folder for index in self.indexes)


Check = Callable[[Fleet, Weights], Iterator[Complaint]]


@dataclass(frozen=True)
class WeightRule:
    id: str
    severity: Severity
    check: Check

    @property
    def reason(self) -> str:
        return (self.check.__doc__ or "").strip().splitlines()[0]


WEIGHT_RULES: dict[str, WeightRule] = {}


def rule(id: str, severity: Severity) -> Callable[[Check], Check]:
    def listed(check: Check) -> Check:
        WEIGHT_RULES[id] = WeightRule(id, severity, check)
        return check

    return listed


def shown(name: str) -> str:
    """A name as one word: quoted and escaped where it is not plain."""
    return name if re.fullmatch(r"[\w./:@+-]+", name) else repr(name)


def some(names: Collection[str]) -> str:
    """The first of `names`, and how many more there are."""
    head = ", ".join(shown(name) for name in sorted(names)[:SHOWN])
    return head if len(names) <= SHOWN else f"{head} and {len(names) - SHOWN} more"


def _again(fleet: Fleet) -> str:
    return f"download it to {fleet.inventory.source} again"


@rule("weights-missing", Severity.ERROR)
def weights_missing(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """A folder without weights is half a download; vLLM says so only after minutes."""
    if not (weights.shards or weights.others or weights.dangling or weights.listed):
        message = f"no weights (*.safetensors) in {fleet.inventory.model.path}"
        yield Complaint("model.path", message, f"download the model to {fleet.inventory.source} again")


@rule("weights-unchecked", Severity.NOTE)
def weights_unchecked(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """Only safetensors files say what they should hold."""
    if weights.others and not (weights.shards or weights.listed):
        message = f"whether these are whole is not checked: {some(weights.others)}"
        yield Complaint("model.path", message, "compare their sha256 with the publisher's")
    for folder, shards in _by_folder(weights).items():
        if len(shards) > 1 and not weights.indexed(folder) and not any(NUMBERED.fullmatch(one) for one in shards):
            message = f"{len(shards)} shards and no index: whether one is missing cannot be told"
            yield Complaint("model.path", message, f"add {LOADED_BY}, if the publisher has one")


@rule("shard-damaged", Severity.ERROR)
def shard_damaged(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """A file whose size is not what its own header promises was not written to its end."""
    for shard in weights.shards:
        wrong = _header_wrong(shard) or _offsets_wrong(shard) or _size_wrong(shard)
        if wrong:
            yield Complaint("model.path", f"{shown(shard.path)} {wrong}", _again(fleet))


def _header_wrong(shard: Shard) -> str | None:
    if shard.header is None:
        return f"is {shard.size} bytes, which is no safetensors file"
    if shard.header == LFS_POINTER:
        return "is a pointer of Git LFS, not the weights (git lfs pull)"
    if shard.header == 0:
        return "begins with zeros: room was made for it and it was not written"
    if shard.header > MAX_HEADER:
        return f"gives its header {shard.header} bytes, more than safetensors allows ({MAX_HEADER})"
    if 8 + shard.header > shard.size:
        missing = 8 + shard.header - shard.size
        return f"ends within its header, at least {missing} bytes short ({shard.size} bytes)"
    return shard.trouble if shard.tensors is None else None


def _offsets_wrong(shard: Shard) -> str | None:
    position = 0
    for (begin, end), name in sorted((where, name) for name, where in (shard.tensors or {}).items()):
        if begin < position:
            return (
                f"has tensors that overlap: {shown(name)} begins {position - begin} bytes before the one in front ends"
            )
        if begin > position:
            return f"has {begin - position} bytes that are no tensor's before {shown(name)}"
        position = end
    return None


def _size_wrong(shard: Shard) -> str | None:
    if shard.size < shard.end:
        return f"is {shard.end - shard.size} bytes short: {shard.size} bytes, its header promises {shard.end}"
    if shard.size > shard.end:
        return f"is {shard.size - shard.end} bytes too long: {shard.size} bytes, its header promises {shard.end}"
    return None


@rule("index-unreadable", Severity.ERROR)
def index_unreadable(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """Without its index nobody can say which shards a checkpoint has."""
    for index in weights.indexes:
        if index.shards is None:
            message = f"{shown(index.path)} is no index of safetensors files (JSON with a weight_map)"
            yield Complaint("model.path", message, _again(fleet))


@rule("shard-missing", Severity.ERROR)
def shard_missing(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """Layers of a shard that is not there keep whatever was in memory."""
    fix = f"download what is missing to {fleet.inventory.source}"
    for index in weights.indexes:
        named = set((index.shards or {}).values())
        gone = named - weights.by_path.keys()
        if gone:
            message = f"{len(gone)} of the {len(named)} shards in {shown(index.path)} are not there: {some(gone)}"
            yield Complaint("model.path", message, fix)
    for path in sorted(set(weights.dangling) - weights.listed):
        yield Complaint("model.path", f"{shown(path)} is a link to nothing", fix)
    for folder, shards in _by_folder(weights).items():
        if not weights.indexed(folder):
            for message in _numbers_missing(shards):
                yield Complaint("model.path", message, fix)


def _by_folder(weights: Weights) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted({*weights.by_path, *weights.dangling}):
        if path.endswith(".safetensors"):
            found.setdefault(posixpath.dirname(path), []).append(path)
    return found


def _numbers_missing(shards: list[str]) -> Iterator[str]:
    """Of `NAME-00002-of-00005.safetensors` without an index: the numbers that are not there, counted from 1 or 0."""
    series: dict[tuple[str, str], set[int]] = {}
    for path in shards:
        if found := NUMBERED.fullmatch(path):
            series.setdefault((found[1], found[3]), set()).add(int(found[2]))
    for (stem, count), numbers in series.items():
        first = 0 if 0 in numbers else 1
        # A name may promise more shards than anybody has.
        gone = [n for n in range(first, first + min(int(count), 100_000)) if n not in numbers]
        if gone:
            names = [f"{stem}-{number:0{len(count)}}-of-{count}.safetensors" for number in gone]
            yield f"{len(gone)} of {int(count)} shards are not there: {some(names)}"


@rule("tensor-missing", Severity.ERROR)
def tensor_missing(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """Index and shard are of different downloads, and what neither holds is left as it was in memory."""
    for index in weights.indexes:
        lacking: dict[str, list[str]] = {}
        for tensor, path in (index.shards or {}).items():
            shard = weights.by_path.get(path)
            if shard is not None and shard.tensors is not None and tensor not in shard.tensors:
                lacking.setdefault(path, []).append(tensor)
        for path, tensors in sorted(lacking.items()):
            message = f"{shown(path)} lacks {len(tensors)} tensors that {shown(index.path)} puts there: {some(tensors)}"
            yield Complaint("model.path", message, f"download both to {fleet.inventory.source} again")


@rule("shard-unlisted", Severity.WARNING)
def shard_unlisted(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """vLLM loads only the shards that the index names; any other is copied for nothing."""
    unlisted = [
        shard.path
        for shard in weights.shards
        if shard.path not in weights.listed and weights.indexed(posixpath.dirname(shard.path))
    ]
    if unlisted and all(index.shards is not None for index in weights.indexes):
        message = f"in no index: {some(unlisted)}"
        yield Complaint("model.path", message, "remove what does not belong to the model, or download the index again")


@rule("index-total-size", Severity.WARNING)
def index_total_size(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """An index of another version of the model still names the same files."""
    for index in weights.indexes:
        shards = [weights.by_path.get(path) for path in set((index.shards or {}).values())]
        known = [shard.tensors for shard in shards if shard is not None and shard.tensors is not None]
        if index.total is None or not shards or len(known) < len(shards):
            continue
        held = sum(end - begin for tensors in known for begin, end in tensors.values())
        if held != index.total:
            message = f"{shown(index.path)} says {index.total} bytes of tensors, its shards hold {held}"
            yield Complaint("model.path", message, f"download the index to {fleet.inventory.source} again")


@rule("mtp-tensors-missing", Severity.ERROR)
def mtp_tensors_missing(fleet: Fleet, weights: Weights) -> Iterator[Complaint]:
    """A model that was tuned or quantised without its MTP head drafts at random, though config.json has the layer."""
    speculative = fleet.inventory.speculative
    if speculative is None or not fleet.tokens or "mtp" not in fleet.settings["method"].lower():
        return
    gone = weights.listed - weights.by_path.keys()
    if not weights.shards or gone or any(shard.tensors is None for shard in weights.shards):
        return
    drafting = [shard.path for shard in weights.shards if any(MTP.search(name) for name in shard.tensors or ())]
    if any(path in _loaded(weights) for path in drafting):
        return
    fix = f"download a model with its MTP head to {fleet.inventory.source}, or tokens: 0"
    message = f"{fleet.tokens} with method {fleet.settings['method']}, and no tensor of the model is an mtp one"
    if drafting:
        message = f"the mtp tensors are in {some(drafting)}, which {LOADED_BY} does not name: vLLM does not load them"
        fix = "download the index again, or tokens: 0"
    yield Complaint("speculative.tokens", message, fix)


def _loaded(weights: Weights) -> Collection[str]:
    for index in weights.indexes:
        if index.path == LOADED_BY and index.shards is not None:
            return set(index.shards.values())
    return weights.by_path.keys()
