"""Writes a small vision projector with random weights for Gemma 3 270M, so that image requests run the real path of llama.cpp.

The answers mean nothing; that an image is decoded, encoded, projected and attended to is what counts. The same seed gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH = 64
FEED_FORWARD = 128
LAYERS = 2
HEADS = 2
MODEL_WIDTH = 640  # of Gemma 3 270M
IMAGE = 224
PATCH = 14


def write_mmproj(path: Path) -> None:
    """Write the projector (about 650 KB) to `path`."""
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_uint32("clip.vision.image_size", IMAGE)
    writer.add_uint32("clip.vision.patch_size", PATCH)
    writer.add_uint32("clip.vision.embedding_length", WIDTH)
    writer.add_uint32("clip.vision.feed_forward_length", FEED_FORWARD)
    writer.add_uint32("clip.vision.projection_dim", MODEL_WIDTH)
    writer.add_uint32("clip.vision.block_count", LAYERS)
    writer.add_uint32("clip.vision.attention.head_count", HEADS)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_file_type(0)
    writer.add_name("random vision projector for tests")

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.02).astype(np.float32))

    def ones(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.ones(shape, np.float32))

    def zeros(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.zeros(shape, np.float32))

    weights("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    zeros("v.patch_embd.bias", WIDTH)
    weights("v.position_embd.weight", (IMAGE // PATCH) ** 2, WIDTH)
    for layer in range(LAYERS):
        block = f"v.blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights(f"{block}{part}.weight", WIDTH, WIDTH)
            zeros(f"{block}{part}.bias", WIDTH)
        for part in ("ln1", "ln2"):
            ones(f"{block}{part}.weight", WIDTH)
            zeros(f"{block}{part}.bias", WIDTH)
        weights(f"{block}ffn_up.weight", FEED_FORWARD, WIDTH)
        zeros(f"{block}ffn_up.bias", FEED_FORWARD)
        weights(f"{block}ffn_down.weight", WIDTH, FEED_FORWARD)
        zeros(f"{block}ffn_down.bias", WIDTH)
    ones("v.post_ln.weight", WIDTH)
    zeros("v.post_ln.bias", WIDTH)
    ones("mm.soft_emb_norm.weight", WIDTH)
    weights("mm.input_projection.weight", WIDTH, MODEL_WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_mmproj(Path(sys.argv[1]))
