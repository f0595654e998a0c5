"""A stand-in for a quantised model: the files a real one has, valid in form, with weights that mean nothing.

At least 256 MB in five safetensors files with an index, made from a fixed seed: every lab has the same bytes, and they
do not compress, so that copies cost what they weigh.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

VERSION = 1
SHARDS = 5
ROWS = COLUMNS = 2048  # one int8 tensor: 4 MiB
LAYERS = 16
SEED = 38

PROJECTIONS = ("mlp.up_proj", "mlp.gate_proj", "mlp.down_proj", "self_attn.o_proj")
MTP = ("mtp.fc.weight", "mtp.layers.0.self_attn.o_proj.weight", "mtp.layers.0.mlp.down_proj.weight")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def tensor_names(layers: int = LAYERS) -> list[str]:
    body = [f"model.layers.{layer}.{name}.weight" for layer in range(layers) for name in PROJECTIONS]
    return [*body, "lm_head.weight", *MTP]


def make(folder: Path, name: str, layers: int = LAYERS) -> None:
    """Writes the model, 16 MiB a layer, into `folder`, which appears only when it is whole."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    source = random.Random(SEED)  # noqa: S311  the same bytes everywhere, nothing secret
    tensors = tensor_names(layers)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        own = tensors[number::SHARDS]
        _write_shard(new / file, own, source)
        weight_map.update(dict.fromkeys(own, file))
    total = len(tensors) * ROWS * COLUMNS
    _json(
        new / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    _json(new / "config.json", _config(name, layers))
    _json(
        new / "quant_model_description.json",
        {"model_quant_type": "W8A8", "version": "1.0.0", **dict.fromkeys(tensors, "W8A8")},
    )
    _json(new / "generation_config.json", {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20})
    _json(
        new / "tokenizer_config.json",
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
    )
    vocabulary = {chr(code): code for code in range(256)}
    _json(new / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    _json(new / "vocab.json", vocabulary)
    (new / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    new.replace(folder)


def _write_shard(path: Path, tensors: list[str], source: random.Random) -> None:
    size = ROWS * COLUMNS
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for index, tensor in enumerate(tensors):
        header[tensor] = {
            "dtype": "I8",
            "shape": [ROWS, COLUMNS],
            "data_offsets": [index * size, (index + 1) * size],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _ in tensors:
            file.write(source.randbytes(size))


def _config(name: str, layers: int) -> dict[str, Any]:
    return {
        "_name_or_path": name,
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "hidden_size": COLUMNS,
            "num_hidden_layers": layers,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 262144,
            "mtp_num_hidden_layers": 1,
            "vocab_size": 248320,
            "dtype": "bfloat16",
        },
        "dtype": "bfloat16",
    }


def _json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
