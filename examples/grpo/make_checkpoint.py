"""Makes the checkpoint that trainer and engine start from: a tiny random Qwen3 by transformers.

It must be a transformers checkpoint. Tunix initialises every MLP matrix to zero, where its gradient
is zero too, so a run from Tunix's own initialisation would never test those weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from task import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN, VOCABULARY_SIZE
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging


def tiny_qwen3() -> Qwen3Config:
    """Returns the configuration: four layers, grouped-query attention, tied embeddings."""
    return Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,  # transformers splits KV heads over ranks and cannot repeat them
        head_dim=32,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        # Tunix 0.1.7 always uses this base, whatever its configuration says.
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        max_position_embeddings=64,
        bos_token_id=BEGIN_TOKEN,
        eos_token_id=END_TOKEN,
        pad_token_id=PAD_TOKEN,
        dtype="float32",
    )


def main() -> None:
    """Writes the checkpoint into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    torch.manual_seed(arguments.seed)
    model = Qwen3ForCausalLM(tiny_qwen3()).float()
    model.save_pretrained(arguments.folder)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.folder}: random Qwen3 with {count:,} parameters")


if __name__ == "__main__":
    main()
