"""A model that a real vLLM loads, made on the spot: 1.2 million random numbers in the form of a Qwen3, 2.5 MB.

It was never trained. Its numbers are arranged so that one token clearly follows another (the output layer is the
embedding, moved on by one): without sampling it says the same nonsense every time, whatever else is in the batch, and
with sampling another one. It never ends by itself. Everything is written with the standard library, from a fixed seed.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from array import array
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

VERSION = 2
SEED = 38
# Narrow and deep: a token takes some milliseconds, so that on two cores the engine is slow and not its clients;
# and a whole context of keys and values is less than a gigabyte.
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 24, 4, 1, 32, 128
VOCABULARY = 1024
CONTEXT = 262144
SMALL = 0.01  # standard deviation of the layers' weights: they whisper into what the embedding says
SURE = 0.125  # times HIDDEN is the logit of the next token, 8; of any other some -3 to 3
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
NEWLINE = "\u010a"  # how a byte-level tokenizer writes it; what a prompt ends with
SPACE = "\u0120"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (GPT-2's rule)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def merges() -> list[tuple[str, str]]:
    """Two letters, a space and a letter, two digits of a number below 60: no training, the same everywhere."""
    pairs = [(first, second) for first in (*ascii_lowercase, SPACE) for second in ascii_lowercase]
    pairs += [(first, second) for first in digits[:6] for second in digits]
    return pairs[: VOCABULARY - 256 - len(SPECIAL)]


def vocabulary() -> list[str]:
    return [*byte_letters(), *(a + b for a, b in merges()), *SPECIAL]


def make(folder: Path, name: str) -> None:
    """Writes the model into `folder`, which appears only when it is whole."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    words = vocabulary()
    _json(new / "config.json", _config(name, words))
    _json(new / "generation_config.json", {"eos_token_id": words.index("<|im_end|>")})
    _json(new / "tokenizer.json", _tokenizer(words))
    _json(
        new / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _weights(new / "model.safetensors", words)
    new.replace(folder)


def _weights(path: Path, words: list[str]) -> None:
    source = random.Random(SEED)  # noqa: S311  the same numbers everywhere, nothing secret
    tensors: dict[str, tuple[list[int], array[float]]] = {}

    def put(name: str, *shape: int, deviation: float | None = None) -> None:
        """Random numbers, or without a deviation ones."""
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = (source.gauss(0, deviation) if deviation else 1.0 for _ in range(count))
        tensors[name] = list(shape), array("f", values)

    put("model.embed_tokens.weight", len(words), HIDDEN, deviation=1.0)
    for layer in range(LAYERS):
        own = f"model.layers.{layer}"
        put(f"{own}.input_layernorm.weight", HIDDEN)
        put(f"{own}.post_attention_layernorm.weight", HIDDEN)
        put(f"{own}.self_attn.q_norm.weight", HEAD_DIM)
        put(f"{own}.self_attn.k_norm.weight", HEAD_DIM)
        for which, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            put(f"{own}.self_attn.{which}_proj.weight", heads * HEAD_DIM, HIDDEN, deviation=SMALL)
        put(f"{own}.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM, deviation=SMALL)
        for which in ("gate", "up"):
            put(f"{own}.mlp.{which}_proj.weight", INTERMEDIATE, HIDDEN, deviation=SMALL)
        put(f"{own}.mlp.down_proj.weight", HIDDEN, INTERMEDIATE, deviation=SMALL)
    put("model.norm.weight", HIDDEN)
    tensors["lm_head.weight"] = [len(words), HIDDEN], _next(words, tensors["model.embed_tokens.weight"][1], source)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (shape, values) in tensors.items():
        packed = _bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(packed)]}
        body += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _next(words: list[str], embedding: array[float], source: random.Random) -> array[float]:
    """The output layer: all that can be read stands in one random circle, and each points at the one behind it."""
    spoken = [number for number, word in enumerate(words) if len(word) == 2]
    source.shuffle(spoken)
    rows = array("f", bytes(4 * len(embedding)))
    for before, after in zip(spoken, spoken[1:] + spoken[:1], strict=True):
        own = embedding[before * HIDDEN : (before + 1) * HIDDEN]
        rows[after * HIDDEN : (after + 1) * HIDDEN] = array("f", (value * SURE for value in own))
    # Every prompt of a chat ends with a new line: that too has a token that clearly follows it.
    end = words.index(NEWLINE)
    embedding[end * HIDDEN : (end + 1) * HIDDEN] = embedding[spoken[0] * HIDDEN : (spoken[0] + 1) * HIDDEN]
    return rows


def _bfloat16(values: array[float]) -> bytes:
    """The upper half of each float, little-endian."""
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        values.byteswap()
    whole = values.tobytes()
    packed = bytearray(len(whole) // 2)
    packed[0::2], packed[1::2] = whole[2::4], whole[3::4]
    return bytes(packed)


def _config(name: str, words: list[str]) -> dict[str, Any]:
    return {
        "_name_or_path": name,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(words),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "eos_token_id": words.index("<|im_end|>"),
        "pad_token_id": words.index("<|endoftext|>"),
        "dtype": "bfloat16",
    }


def _tokenizer(words: list[str]) -> dict[str, Any]:
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    added = [
        {
            "id": number,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            # What parsers look for in the text is not special: a special token would be left out of it.
            "special": word.startswith("<|"),
        }
        for number, word in enumerate(words)
        if word in SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: number for number, word in enumerate(words) if word not in SPECIAL},
            "merges": [list(pair) for pair in merges()],
        },
    }


def _json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
