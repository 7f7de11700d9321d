#!/usr/bin/env python3
"""Random formulas and attention as ONNX files in Brrr and ONNX Runtime: how many results differ.

bench/peers/onnx_formulas.py BRRR [GRAPHS [SEED]]: BRRR is the program, GRAPHS how many graphs (10000), 50 to a file. Norms,
activations and attention are written out as exporters of PyTorch, TensorFlow and JAX write them: masks of every sort
(boolean, added, finite, -inf, causal, padding), guards against NaN, scales, ranks, biases that broadcast. ONNX Runtime runs
them as they are written, without its own optimiser. Needs onnx, onnxruntime and numpy. Prints each graph that differs with
its seed, then the totals; exit 1 where one did.
"""
import os, subprocess, sys, tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

PER_FILE = 50
LOWEST = float(np.finfo(np.float32).min)


class Graph:
    """One graph among those of a file: its names begin with its number."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.prefix, self.count = f"g{seed}_", 0
        self.nodes, self.inputs, self.constants, self.values = [], [], [], {}
        self.kind = "attention" if seed % 2 else "formula"
        self.output = self.attention() if seed % 2 else self.formulas()

    # -- building
    def name(self):
        self.count += 1
        return f"{self.prefix}{self.count}"

    def op(self, kind, *operands, **attributes):
        y = self.name()
        self.nodes.append(helper.make_node(kind, list(operands), [y], **attributes))
        return y

    def const(self, value, dtype=np.float32):
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def tensor(self, array):
        """An input, or as often a weight of the file."""
        if self.chance(2):
            return self.const(array, array.dtype)
        name = self.name()
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
        self.values[name] = array
        return name

    def chance(self, one_in):
        return self.rng.integers(one_in) == 0

    def any(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def commuted(self, kind, a, b):
        return self.op(kind, *((a, b) if self.chance(2) else (b, a)))

    def number(self, x, rank):
        shape = [1] * self.rng.integers(rank + 1) if self.chance(3) else []
        return self.const(np.full(shape, x, np.float32))

    # -- formulas
    def formulas(self):
        rank = self.rng.integers(1, 5)
        shape = [int(n) for n in self.rng.integers(1, 5, rank)]
        if self.chance(2):
            shape[-1] = 4
        x = self.tensor(self.rng.uniform(-1.5, 1.5, shape).astype(np.float32))
        for _ in range(self.rng.integers(1, 4)):
            x, shape = self.any(self.norm, self.norm, self.gelu, self.gelu_tanh, self.silu)(x, shape)
        return x

    def vector(self, shape):
        """A weight or bias for the last axis, seldom of another shape that broadcasts."""
        own = [shape[-1]]
        kind = self.rng.integers(10)
        if kind < 3:
            own = [1] * self.rng.integers(len(shape) + 1) + own
        elif kind == 3:
            own = shape[self.rng.integers(len(shape)):]
        elif kind == 4:
            own = shape[:-1] + [1]
        elif kind == 5:
            own = [1]
        return self.tensor(self.rng.uniform(0.2, 1.5, own).astype(np.float32)), own

    def norm(self, x, shape):
        rank, centred = len(shape), not self.chance(3)
        mean = lambda v: self.op("ReduceMean", v, axes=[-1 if self.chance(2) else rank - 1], keepdims=1)
        d = self.op("Sub", x, mean(x)) if centred else x
        again = self.op("Sub", x, mean(x)) if centred and self.chance(4) else d
        square = self.op("Mul", again, again) if self.chance(2) else self.op("Pow", again, self.number(2, rank))
        variance = self.commuted("Add", mean(square), self.number(self.any(1e-5, 1e-6, 0.1), rank))
        way = self.rng.integers(5)
        if way == 0:
            y = self.op("Div", d, self.op("Sqrt", variance))
        elif way == 1:
            y = self.commuted("Mul", d, self.op("Reciprocal", self.op("Sqrt", variance)))
        elif way == 2:
            y = self.commuted("Mul", d, self.op("Div", self.number(1, rank), self.op("Sqrt", variance)))
        elif way == 3:
            y = self.commuted("Mul", d, self.op("Pow", variance, self.number(-0.5, rank)))
        else:
            y = self.op("Div", d, self.op("Pow", variance, self.number(0.5, rank)))
        for kind in ("Mul", "Add"):
            if not self.chance(3):
                v, own = self.vector(shape)
                y = self.commuted(kind, y, v)
                shape = list(np.broadcast_shapes(shape, own))
        return y, shape

    def halved(self, x, e, rank):
        one, half = self.number(1, rank), self.number(0.5, rank)
        way = self.rng.integers(3)
        if way == 0:
            return self.commuted("Mul", self.commuted("Mul", x, self.commuted("Add", e, one)), half)
        if way == 1:
            return self.commuted("Mul", self.commuted("Mul", x, half), self.commuted("Add", e, one))
        return self.commuted("Mul", x, self.commuted("Mul", half, self.commuted("Add", e, one)))

    def gelu(self, x, shape):
        rank = len(shape)
        inner = self.op("Div", x, self.number(2**0.5, rank)) if self.chance(2) else self.commuted("Mul", x, self.number(0.5**0.5, rank))
        return self.halved(x, self.op("Erf", inner), rank), shape

    def gelu_tanh(self, x, shape):
        rank = len(shape)
        cube = self.op("Pow", x, self.number(3, rank)) if self.chance(2) else self.op("Mul", self.op("Mul", x, x), x)
        inner = self.commuted("Add", x, self.commuted("Mul", cube, self.number(0.044715, rank)))
        e = self.op("Tanh", self.commuted("Mul", inner, self.number((2 / np.pi) ** 0.5, rank)))
        return self.halved(x, e, rank), shape

    def silu(self, x, shape):
        return self.commuted("Mul", x, self.op("Sigmoid", x)), shape

    # -- attention
    def grid(self, *shape):
        """Multiples of a half: what is added to -10000 or -65504 rounds nothing."""
        return (self.rng.integers(-2, 3, shape) * 0.5).astype(np.float32)

    def attention(self):
        self.batch, self.heads = int(self.rng.integers(1, 3)), int(self.any(1, 2, 4))
        self.t, self.s = int(self.rng.integers(1, 6)), int(self.rng.integers(1, 7))
        # One finite number to a graph: where two are added to all scores of a row, what rounding leaves depends on the order.
        self.low = self.any(-1e4, -1e4, -65504, -1e9, LOWEST)
        b, h, t, s, d = self.batch, self.heads, self.t, self.s, int(self.any(1, 2, 4))
        q, k = self.operand(t, d, self.grid), self.operand(s, d, self.grid)
        v = self.operand(s, d, lambda *n: self.rng.uniform(-1, 1, n).astype(np.float32))
        if self.chance(4):
            q = self.op("Mul", q, self.const(0.5))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        if not self.chance(3):
            scores = self.op(*(("Div", scores, self.const(2)) if self.chance(2) else ("Mul", scores, self.const(0.5))))
        for _ in range(self.any(0, 1, 1, 1, 2, 2, 3)):
            scores = self.masked(scores)
        p = self.op("Softmax", scores, axis=-1)
        if self.chance(2):
            nan = self.op("IsNaN", p)
            p = self.op("Where", nan, self.const(0), p)
        y = self.op("MatMul", p, v)
        if self.chance(2):
            y = self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.const([b, t, h * d], np.int64))
        return y

    def operand(self, rows, width, make):
        if self.chance(3):
            return self.tensor(make(self.batch, self.heads, rows, width))
        x = self.tensor(make(self.batch, rows, self.heads * width))
        apart = self.op("Reshape", x, self.const([self.any(0, self.batch), rows, self.heads, width], np.int64))
        return self.op("Transpose", apart, perm=[0, 2, 1, 3])

    def shape(self):
        full = [self.batch, self.heads, self.t, self.s]
        full = [1 if self.chance(3) else n for n in full]
        return full[self.rng.integers(0, 4):]

    def condition(self):
        way = self.rng.integers(5)
        if way == 0:
            return self.const(np.tril(np.ones((1, 1, self.t, self.s), bool)), bool)
        if way == 1:  # positions that are compared
            rows = self.op("Unsqueeze", self.op("Range", *(self.const(n, np.int64) for n in (0, self.t, 1))), self.const([1], np.int64))
            columns = self.op("Range", *(self.const(n, np.int64) for n in (0, self.s, 1)))
            return self.op("LessOrEqual", columns, rows) if self.chance(2) else self.op("Not", self.op("Greater", columns, rows))
        often = self.any(0.5, 0.85)
        keep = self.rng.random(self.shape()) < often
        if way == 2:
            return self.tensor(keep)
        if way == 3:  # an attention mask of tokens
            mask = (self.rng.random((self.batch, self.s)) < often).astype(np.int64)
            wide = self.op("Unsqueeze", self.tensor(mask), self.const([1, 2], np.int64))
            return self.op("Not", self.op("Equal", wide, self.const(0, np.int64)))
        return self.op("And", self.condition(), self.tensor(keep))

    def masked(self, scores):
        low = self.any(-np.inf, -np.inf, -np.inf, self.low, self.low, self.low, self.low, self.low, -5)
        hidden, zero = self.const(low), self.const(0)
        way = self.rng.integers(6)
        if way == 0:
            return self.op("Where", self.condition(), scores, hidden)
        if way == 1:
            return self.op("Where", self.op("Not", self.condition()), hidden, scores)
        if way == 2:
            return self.commuted("Add", scores, self.op("Where", self.condition(), zero, hidden))
        if way == 3 and np.isfinite(low):
            flag = self.op("Cast", self.condition(), to=TensorProto.FLOAT)
            return self.commuted("Add", scores, self.op("Mul", self.op("Sub", self.const(1), flag), hidden))
        if way == 4:
            flag = self.op("Cast", self.condition(), to=TensorProto.FLOAT)  # as transformers does it
            inverted = self.op("Sub", self.const(1), flag)
            mask = self.op("Where", self.op("Cast", inverted, to=TensorProto.BOOL), hidden, inverted)
            return self.commuted("Add", scores, mask)
        bias = self.grid(*self.shape())
        bias[self.rng.random(bias.shape) < 0.2] = low
        return self.commuted("Add", scores, self.tensor(bias))


def model_of(graphs):
    nodes = [n for g in graphs for n in g.nodes]
    outputs = [helper.make_empty_tensor_value_info(g.output) for g in graphs]
    for o in outputs:
        o.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "formulas", [i for g in graphs for i in g.inputs], outputs, [c for g in graphs for c in g.constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def difference(got, wanted):
    if got.shape != wanted.shape:
        return f"{got.shape} instead of {wanted.shape}"
    top = max([1.0, *np.abs(wanted[np.isfinite(wanted)]).flat])
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | (np.abs(got - wanted) <= 1e-3 * top)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{list(at)} is {got[at]}, wanted {wanted[at]}"


def main():
    brrr, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10000
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    np.seterr(all="ignore")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    compared, wrong = {"formula": 0, "attention": 0}, 0
    for begin in range(first, first + count, PER_FILE):
        graphs = [Graph(seed) for seed in range(begin, min(begin + PER_FILE, first + count))]
        inputs = {name: value for g in graphs for name, value in g.values.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "formulas.onnx")
            onnx.save(model_of(graphs), path)
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            wanted = dict(zip([g.output for g in graphs], session.run([g.output for g in graphs], inputs)))
            command = [brrr, "run", path, "--output-dir", folder]
            for name, value in inputs.items():
                np.save(os.path.join(folder, name + ".in.npy"), value)
                command += ["--input", f"{name}={folder}/{name}.in.npy"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                print(f"seeds {begin} to {begin + len(graphs) - 1}: {done.stderr.strip()}")
                wrong += len(graphs)
                continue
            for g in graphs:
                compared[g.kind] += 1
                why = difference(np.load(os.path.join(folder, g.output + ".npy")), wanted[g.output])
                if why:
                    wrong += 1
                    print(f"seed {int(g.prefix[1:-1])} ({g.kind}): {why}")
        sys.stdout.flush()
    print(f"{compared['formula']} graphs of formulas, {compared['attention']} of attention: {wrong} wrong")
    sys.exit(1 if wrong else 0)


main()
