#!/usr/bin/env python3
"""Write tests/golden/exported: small models of transformers as PyTorch's exporters write them.

    python3 tests/golden/make_exported_goldens.py

Needs torch, transformers, onnx, onnxscript and safetensors. Each NAME.onnx is a model of one layer with random weights;
exported.safetensors holds NAME/INPUT and NAME/y, what PyTorch computes. One row of the batch is padded at its end.
tests/conformance/exported_test.cpp says what must be found in each.
"""

import pathlib
import tempfile

import onnx
import safetensors.torch
import torch
import transformers as t

GOLDEN = pathlib.Path(__file__).parent / "exported"
SMALL = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
SHARED = dict(num_key_value_heads=1, head_dim=8, use_cache=False, max_position_embeddings=16)


def bert(how):
    return t.BertModel(t.BertConfig(**SMALL, max_position_embeddings=16, attn_implementation=how))


def gpt2(how):
    sizes = dict(vocab_size=24, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    return t.GPT2Model(t.GPT2Config(**sizes, use_cache=False, attn_implementation=how))


def llama(how):
    return t.LlamaModel(t.LlamaConfig(**SMALL, **SHARED, attn_implementation=how))


def qwen3(how):
    return t.Qwen3Model(t.Qwen3Config(**SMALL, **SHARED, attn_implementation=how))


def gemma3(how):
    config = t.Gemma3TextConfig(**SMALL, **SHARED, sliding_window=3, layer_types=["sliding_attention"])
    config._attn_implementation = how
    return t.Gemma3TextModel(config)


def t5(how):
    sizes = dict(vocab_size=24, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    return t.T5EncoderModel(t.T5Config(**sizes, attn_implementation=how))


CASES = [
    ("bert-eager-11", bert, "eager", 11),
    ("bert-sdpa-14", bert, "sdpa", 14),
    ("gpt2-eager-17", gpt2, "eager", 17),
    ("llama-sdpa-17", llama, "sdpa", 17),
    ("t5-eager-14", t5, "eager", 14),
    ("qwen3-dynamo-18", qwen3, "sdpa", 18),
    ("bert-dynamo-23", bert, "sdpa", 23),
    ("gemma3-dynamo-23", gemma3, "sdpa", 23),
]


class FirstOutput(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)[0]


def scramble(model):
    random = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        shift = 1.0 if p.dim() == 1 and "weight" in name else 0.0
        p.data = torch.randn(p.shape, generator=random) * 0.2 + shift


def export(name, model, inputs, opset):
    names = ["input_ids", "attention_mask"]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        if "dynamo" in name:
            batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=16)
            shapes = tuple({0: batch, 1: length} for _ in inputs)
            torch.onnx.export(model, inputs, path, input_names=names, output_names=["y"], opset_version=opset,
                              dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False)
        else:
            axes = {n: {0: "batch", 1: "length"} for n in names}
            torch.onnx.export(model, inputs, path, input_names=names, output_names=["y"], opset_version=opset,
                              dynamo=False, dynamic_axes=axes)
        file = onnx.load(path)
    # What was traced where, and the types of values between, are most of the bytes.
    for node in file.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    file.graph.ClearField("metadata_props")
    file.graph.ClearField("value_info")
    file.ClearField("metadata_props")
    onnx.save(file, GOLDEN / f"{name}.onnx")


GOLDEN.mkdir(exist_ok=True)
tensors = {}
for name, make, how, opset in CASES:
    torch.manual_seed(0)
    ids = torch.randint(3, 23, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    model = make(how).eval()
    scramble(model)
    model = FirstOutput(model).eval()  # export() leaves a model in the mode that it had
    export(name, model, (ids, mask), opset)
    with torch.no_grad():
        tensors |= {f"{name}/input_ids": ids.clone(), f"{name}/attention_mask": mask.clone(), f"{name}/y": model(ids, mask)}
safetensors.torch.save_file(tensors, GOLDEN / "exported.safetensors")
