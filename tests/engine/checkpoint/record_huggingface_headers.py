#!/usr/bin/env python3
"""Prints data/huggingface_headers.json: names, types and shapes of the tensors that transformers
saves for four small models. Needs torch and transformers; the file names the versions."""
import json
import pathlib
import struct
import tempfile

import torch
import transformers


def header(model):
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        data = pathlib.Path(directory, "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + length])
    tensors.pop("__metadata__")
    return {name: [tensor["dtype"], tensor["shape"]] for name, tensor in sorted(tensors.items())}


def gpt2(tied):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=24, n_layer=2, n_head=3, n_inner=40,
        tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None))


def llama(tied):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=32,
        tie_word_embeddings=tied)).to(torch.bfloat16)


def lines(models):
    """One tensor a line."""
    yield "{"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    yield f' "versions": {json.dumps(versions)},'
    yield ' "models": {'
    for i, (name, tensors) in enumerate(models.items()):
        yield f'  "{name}": {{'
        yield ",\n".join(f"   {json.dumps(tensor)}: {json.dumps(value)}"
                         for tensor, value in tensors.items())
        yield "  }" + ("," if i + 1 < len(models) else "")
    yield " }"
    yield "}"


if __name__ == "__main__":
    print("\n".join(lines({"gpt2": header(gpt2(True)), "gpt2_untied": header(gpt2(False)),
                           "llama": header(llama(False)), "llama_tied": header(llama(True))})))
