#!/usr/bin/env python3
"""Golden numbers of EfficientNets (Tan and Le 2019), computed by PyTorch from the module below:

  pictures/efficientnet_*.safetensors: small random nets, in float64: logits of evaluation, and of
      training loss, every gradient, and losses, weights and running statistics over steps of SGD.
  efficientnet_lite0.safetensors: logits of the published efficientnet-lite0-57934424.pth in float32
      and float64 for two pictures, which tests/models/efficientnet_test.cpp makes by the same formula.

Needs torch and safetensors; run it where they are installed:

    python tests/golden/make_efficientnet_goldens.py [FILE.pth]

Parameters have the names that transformers' EfficientNetForImageClassification has. Weights are stored
as bf16 numbers in float32, so that both sides start from the same bits.
"""

import json
import math
import pathlib
import sys

import numpy
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional

BATCH, STEPS, RATE, MOMENTUM, DECAY = 4, 3, 0.05, 0.9, 0.01
UNSCORED = 2
DEFAULTS = dict(
    num_channels=3, width_coefficient=1.0, depth_coefficient=1.0, depth_divisor=8, stem_channels=32,
    head_channels=1280, out_channels=[16, 24, 40, 80, 112, 192, 320],
    num_block_repeats=[1, 2, 2, 3, 3, 4, 1], kernel_sizes=[3, 3, 5, 3, 5, 5, 3],
    strides=[1, 2, 2, 2, 1, 2, 1], expand_ratios=[1, 6, 6, 6, 6, 6, 6], squeeze_expansion_ratio=0.25,
    hidden_act="swish", padding="same", batch_norm_eps=1e-3, batch_norm_share=0.1, fix_head_stem=False,
    num_labels=1000)
LITE = dict(squeeze_expansion_ratio=0.0, hidden_act="relu6", fix_head_stem=True)
SMALL = dict(depth_divisor=4, stem_channels=8, head_channels=24, out_channels=[4, 8, 12],
             num_block_repeats=[1, 2, 2], kernel_sizes=[3, 5, 3], strides=[1, 2, 2],
             expand_ratios=[1, 3, 2], num_labels=3)
CASES = {
    "efficientnet_lite": dict(SMALL, **LITE, width_coefficient=1.3, depth_coefficient=1.2,
                              image_size=18),
    "efficientnet_squeeze": dict(SMALL, width_coefficient=1.4, image_size=17, num_channels=1),
    "efficientnet_symmetric": dict(SMALL, padding="symmetric", batch_norm_eps=1e-5, image_size=18,
                                   batch_norm_share=0.25),
}


def activation(c):
    return {"swish": functional.silu, "relu6": functional.relu6}[c["hidden_act"]]


class Conv(nn.Conv2d):
    """A convolution whose zeros are those of TensorFlow's "same", or the same on all sides."""

    def __init__(self, c, inputs, outputs, kernel=1, stride=1, groups=1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.symmetric = c["padding"] == "symmetric"

    def forward(self, x):
        pads = []
        for axis in (3, 2):
            kernel, stride, size = self.kernel_size[0], self.stride[0], x.shape[axis]
            if self.symmetric:
                pads += [kernel // 2, kernel // 2]
            else:
                zeros = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
                pads += [zeros // 2, zeros - zeros // 2]
        return super().forward(functional.pad(x, pads))


def norm(c, width):
    return nn.BatchNorm2d(width, eps=c["batch_norm_eps"], momentum=c["batch_norm_share"])


class Part(nn.Module):
    """Named layers, which the owner calls."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Block(nn.Module):
    def __init__(self, c, inputs, outputs, kernel, stride, expansion, residual):
        super().__init__()
        self.act, self.residual = activation(c), residual
        inner = inputs * expansion
        if expansion != 1:
            self.expansion = Part(expand_conv=Conv(c, inputs, inner), expand_bn=norm(c, inner))
        self.depthwise_conv = Part(depthwise_conv=Conv(c, inner, inner, kernel, stride, inner),
                                   depthwise_norm=norm(c, inner))
        if c["squeeze_expansion_ratio"] > 0:
            squeezed = max(1, int(inputs * c["squeeze_expansion_ratio"]))
            self.squeeze_excite = Part(reduce=nn.Conv2d(inner, squeezed, 1),
                                       expand=nn.Conv2d(squeezed, inner, 1))
        self.projection = Part(project_conv=Conv(c, inner, outputs), project_bn=norm(c, outputs))

    def forward(self, x):
        y = x
        if hasattr(self, "expansion"):
            y = self.act(self.expansion.expand_bn(self.expansion.expand_conv(y)))
        layer = self.depthwise_conv
        y = self.act(layer.depthwise_norm(layer.depthwise_conv(y)))
        if hasattr(self, "squeeze_excite"):
            means = y.mean((2, 3), keepdim=True)
            inner = self.act(self.squeeze_excite.reduce(means))
            y = y * torch.sigmoid(self.squeeze_excite.expand(inner))
        y = self.projection.project_bn(self.projection.project_conv(y))
        return x + y if self.residual else y


class EfficientNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        fixed, divisor = c["fix_head_stem"], c["depth_divisor"]

        def scaled(channels):
            wide = channels * c["width_coefficient"]
            width = max(divisor, int(wide + divisor / 2) // divisor * divisor)
            return width + divisor if width < 0.9 * wide else width

        stem = c["stem_channels"] if fixed else scaled(c["stem_channels"])
        head = c["head_channels"] if fixed else scaled(c["head_channels"])
        self.act = activation(c)
        blocks, inputs, count = [], stem, len(c["out_channels"])
        for i in range(count):
            ends = fixed and i in (0, count - 1)
            outputs = scaled(c["out_channels"][i])
            repeats = math.ceil(c["num_block_repeats"][i] * (1 if ends else c["depth_coefficient"]))
            for k in range(repeats):
                blocks.append(Block(c, inputs, outputs, c["kernel_sizes"][i],
                                    c["strides"][i] if k == 0 else 1, c["expand_ratios"][i], k > 0))
                inputs = outputs
        self.efficientnet = Part(
            embeddings=Part(convolution=Conv(c, c["num_channels"], stem, 3, 2),
                            batchnorm=norm(c, stem)),
            encoder=Part(blocks=nn.ModuleList(blocks), top_conv=Conv(c, inputs, head),
                         top_bn=norm(c, head)))
        self.classifier = nn.Linear(head, c["num_labels"])

    def features(self, x):
        net = self.efficientnet
        x = self.act(net.embeddings.batchnorm(net.embeddings.convolution(x)))
        for block in net.encoder.blocks:
            x = block(x)
        return self.act(net.encoder.top_bn(net.encoder.top_conv(x))).mean((2, 3))

    def forward(self, x):
        return self.classifier(self.features(x))


def save(path, tensors, metadata):
    path.parent.mkdir(exist_ok=True)
    save_file({k: numpy.asarray(v, order="C") for k, v in tensors.items()}, path, metadata=metadata)
    print(path.name, path.stat().st_size, "bytes")


def make_small(name, case):
    c = dict(DEFAULTS, **case)
    torch.manual_seed(sum(map(ord, name)))
    model = EfficientNet(c)
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not p.is_floating_point():
                p.fill_(7)
                continue
            if key.endswith("running_var"):
                values = 0.5 + torch.rand(p.shape)
            else:
                values = torch.randn(p.shape) * (0.4 if p.dim() > 1 else 0.2)
            if p.dim() == 1 and key.endswith("weight"):
                values += 1
            p.copy_(values.bfloat16().float())
    model = model.double()
    rng = numpy.random.default_rng(sum(map(ord, name)))
    side, out = c["image_size"], {}

    def state(prefix):
        for key, value in model.state_dict().items():
            value = value.detach()
            out[prefix + key] = (value.float() if value.is_floating_point() else value).numpy().copy()

    state("weights/")
    pixels = rng.normal(size=(STEPS, BATCH, c["num_channels"], side, side)).astype(numpy.float32)
    targets = rng.integers(0, c["num_labels"], (STEPS, BATCH)).astype(numpy.int32)
    targets[:, UNSCORED] = -1
    out["pixels"], out["targets"] = pixels, targets
    model.eval()
    with torch.no_grad():
        first = torch.from_numpy(pixels[0]).double()
        out["logits"], out["embedding"] = model(first).float().numpy(), model.features(first).float().numpy()
    model.train()
    optimizer = torch.optim.SGD(
        [dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=DECAY),
         dict(params=[p for p in model.parameters() if p.dim() <= 1], weight_decay=0)],
        lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(torch.from_numpy(pixels[step]).double()),
                                        torch.from_numpy(targets[step]).long(), ignore_index=-1)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for key, p in model.named_parameters():
                out["grads/" + key] = p.grad.float().numpy().copy()
        optimizer.step()
    out["losses"] = numpy.array(losses)
    state("final/")
    config = {k: v for k, v in c.items() if k != "num_labels"}
    config.update(model_type="efficientnet", architectures=["EfficientNetForImageClassification"],
                  id2label={str(i): f"LABEL_{i}" for i in range(c["num_labels"])},
                  dropout_rate=0.0, drop_connect_rate=0.0)
    save(pathlib.Path(__file__).parent / "pictures" / f"{name}.safetensors", out,
         {"torch": torch.__version__, "config": json.dumps(config), "label_smoothing": "0.0",
          "rate": str(RATE), "momentum": str(MOMENTUM), "decay": str(DECAY)})
    print(losses)


def made_pictures(count=2, side=224):
    """Waves of other lengths and directions in each picture and channel, [count, 3, side, side]."""
    n, c, y, x = numpy.meshgrid(*(numpy.arange(k, dtype=numpy.float64) for k in (count, 3, side, side)),
                                indexing="ij")
    return (numpy.sin(0.05 * (n + 1) * x + c) * numpy.cos(0.03 * (n + 2) * y - c)).astype(numpy.float32)


def make_lite0(path):
    model = EfficientNet(dict(DEFAULTS, **LITE))
    theirs = torch.load(path, "cpu", weights_only=True)
    renamed = {}
    for key in model.state_dict():
        name = key.removeprefix("efficientnet.").removeprefix("encoder.")
        for ours, other in [("embeddings.convolution", "_conv_stem"), ("embeddings.batchnorm", "_bn0"),
                            ("top_conv", "_conv_head"), ("top_bn", "_bn1"), ("classifier", "_fc"),
                            ("expansion.expand_conv", "_expand_conv"), ("expansion.expand_bn", "_bn0"),
                            ("depthwise_conv.depthwise_conv", "_depthwise_conv"),
                            ("depthwise_conv.depthwise_norm", "_bn1"),
                            ("projection.project_conv", "_project_conv"),
                            ("projection.project_bn", "_bn2")]:
            name = name.replace(ours, other)
        if name.startswith("blocks"):
            name = "_" + name
        renamed[key] = theirs.pop(name)
    assert not theirs, list(theirs)
    model.load_state_dict(renamed)
    model.eval()
    pixels = torch.from_numpy(made_pictures())
    with torch.no_grad():
        single = model(pixels).numpy()
        double = model.double()(pixels.double()).float().numpy()
    print("float32 against float64:", numpy.abs(single - double).max(), "deviation:", double.std())
    save(pathlib.Path(__file__).parent / "efficientnet_lite0.safetensors",
         {"logits": double, "logits_f32": single}, {"torch": torch.__version__})


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for key in CASES:
        make_small(key, CASES[key])
    if len(sys.argv) > 1:
        make_lite0(sys.argv[1])
