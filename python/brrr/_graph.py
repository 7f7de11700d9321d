"""Graphs of one's own: the ops of docs/ops.md, gradients, and modules of them."""

import ctypes
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p

from . import _library as c
from ._module import Module
from ._tensor import named

_HIGHEST_RANK = 64
_MOST_RESULTS = 64


class Value:
    """A value of a Graph. Operators (+, -, *, /, @, **, unary -) add ops; numbers become constants of
    the value's dtype. Broadcasting is NumPy's."""

    __slots__ = ("graph", "_value")

    def __init__(self, graph, value):
        self.graph, self._value = graph, value

    def _type(self):
        dtype, rank, sizes = c_int(), c_int(), (c_int64 * _HIGHEST_RANK)()
        c.call("brrr_graph_type", self.graph._open_handle, self._value, byref(dtype), byref(rank),
               sizes, _HIGHEST_RANK)
        return c.DTYPES[dtype.value], tuple(sizes[:rank.value])

    @property
    def shape(self):
        """The sizes, a tuple; -1 where a size is open."""
        return self._type()[1]

    @property
    def dtype(self):
        """The dtype by name."""
        return self._type()[0]

    def mean(self, *axes):
        """The mean along `axes`, or of all elements."""
        return self.graph.mean(self, axes)

    def _with(self, op, other, reverse=False, **attributes):
        if isinstance(other, (bool, int, float)):
            other = self.graph.constant(other, (), self.dtype)
        if not isinstance(other, Value):
            return NotImplemented
        pair = (other, self) if reverse else (self, other)
        return self.graph.op(op, *pair, **attributes)

    def __add__(self, other):
        return self._with("add", other)

    def __radd__(self, other):
        return self._with("add", other, True)

    def __sub__(self, other):
        return self._with("sub", other)

    def __rsub__(self, other):
        return self._with("sub", other, True)

    def __mul__(self, other):
        return self._with("mul", other)

    def __rmul__(self, other):
        return self._with("mul", other, True)

    def __truediv__(self, other):
        return self._with("div", other)

    def __rtruediv__(self, other):
        return self._with("div", other, True)

    def __pow__(self, other):
        return self._with("pow", other)

    def __matmul__(self, other):
        return self._with("matmul", other, transpose_a=False, transpose_b=False)

    def __neg__(self):
        return self.graph.op("neg", self)

    def __repr__(self):
        dtype, shape = self._type()
        return f"<brrr.Value %{self._value.node} {dtype}[{','.join(map(str, shape))}]>"


def _attribute(name, value):
    """An attribute as graphs are written: [2,3] is a shape, (2,3) a list of numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if value in c.DTYPES:
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        items = ",".join(_attribute(name, item) for item in value)
        return f"[{items}]" if name == "shape" else f"({items})"
    if hasattr(value, "__index__"):
        return str(value.__index__())
    if hasattr(value, "__float__"):
        return repr(float(value))
    raise TypeError(f"an attribute is a bool, a number, a text, a dtype or a list of numbers; got "
                    f"{type(value).__name__}")


class Graph(c.Handle):
    """A model as a graph of ops.

        g = brrr.Graph()
        x = g.input("x", (64, 784))
        w = g.parameter("w", (784, 10), init="normal:0.02")
        losses, _ = g.cross_entropy(x @ w, g.input("y", (64,), "i32"))
        g.output("loss", losses.mean())

    Every op of docs/ops.md is a method: operands first, attributes by keyword. What a wrong op,
    attribute or shape raises is ValueError.
    """

    _free = "brrr_graph_free"
    # Attributes that may be left out: those of the C++ interface.
    _defaults = {
        "matmul": {"transpose_a": False, "transpose_b": False},
        "gelu": {"approximate": "tanh"},
        "sum": {"keep": False},
        "max": {"keep": False},
        "min": {"keep": False},
        "layer_norm": {"eps": 1e-5},
        "rms_norm": {"eps": 1e-5},
        "cross_entropy": {"ignore_index": -1},
    }

    def __init__(self, text=None):
        """An empty graph, or the one that str(graph) or `brrr train --dump-graph` wrote."""
        if text is None:
            super().__init__(c.made("brrr_graph_create"))
        else:
            super().__init__(c.made("brrr_graph_parse", c.utf8(text, "text")))

    def input(self, name, shape, dtype="f32"):
        """A tensor that each run is given. shape: sizes, () for one number."""
        value = c.ValueStruct()
        c.call("brrr_graph_input", self._open_handle, c.utf8(name, "name"), c.dtype_code(dtype),
               *c.sizes_of(shape), byref(value))
        return Value(self, value)

    def parameter(self, name, shape, init="normal:0.02"):
        """A weight, f32. init: "zeros", "ones", "normal:0.02" (standard deviation), "uniform:0.1"
        (bound of the absolute value). Weight decay applies to parameters of two or more axes."""
        value = c.ValueStruct()
        c.call("brrr_graph_parameter", self._open_handle, c.utf8(name, "name"),
               *c.sizes_of(shape), c.utf8(init, "init"), byref(value))
        return Value(self, value)

    def constant(self, number, shape=(), dtype="f32"):
        """A tensor of which every element is `number`."""
        value = c.ValueStruct()
        c.call("brrr_graph_constant", self._open_handle, c.dtype_code(dtype), *c.sizes_of(shape),
               float(number), byref(value))
        return Value(self, value)

    def op(self, name, *operands, **attributes):
        """Appends an op of docs/ops.md. Returns its result, or a tuple of several. attributes: bool,
        int, float, text, dtype by name, list of int."""
        # Keywords of Python may end with "_".
        given = {**self._defaults.get(name, {}),
                 **{key.rstrip("_"): value for key, value in attributes.items()}}
        text = "{" + ", ".join(f"{k}={_attribute(k, v)}" for k, v in given.items()) + "}"
        results, count = (c.ValueStruct * _MOST_RESULTS)(), c_size_t()
        c.call("brrr_graph_call", self._open_handle, c.utf8(name, "op"), self._values(operands),
               len(operands), text.encode() if given else None, results, _MOST_RESULTS,
               byref(count))
        values = [Value(self, c.ValueStruct(r.node, r.port)) for r in results[:count.value]]
        return values[0] if len(values) == 1 else tuple(values)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *operands, **attributes: self.op(name.rstrip("_"), *operands, **attributes)

    def linear(self, x, width=None, weight=None, bias=None, name=None):
        """x w + b. x: [..., K] -> [..., width]. weight: [K, width], bias: [width]; where no weight is
        given, "NAME.weight" (normal:0.02) and "NAME.bias" (zeros) are parameters of the graph."""
        if weight is None:
            if width is None or name is None:
                raise TypeError("linear() takes width and name, or weight and bias")
            weight = self.parameter(f"{name}.weight", (x.shape[-1], width))
            bias = self.parameter(f"{name}.bias", (width,), "zeros")
        if bias is None:
            return x @ weight
        return self.op("linear", x, weight, bias)

    def mean(self, x, axes=()):
        """The mean along `axes`, or of all elements."""
        axes = (axes,) if isinstance(axes, int) else tuple(axes)
        value = c.ValueStruct()
        c.call("brrr_graph_mean", self._open_handle, self._of(x), (c_int64 * len(axes))(*axes),
               len(axes), byref(value))
        return Value(self, value)

    def dropout(self, x, p):
        """x, of which each element is 0 with probability p, else scaled by 1 / (1 - p); x itself where
        a graph is evaluated."""
        value = c.ValueStruct()
        c.call("brrr_graph_dropout", self._open_handle, self._of(x), p, byref(value))
        return Value(self, value)

    def output(self, name, value):
        """Names a result."""
        c.call("brrr_graph_output", self._open_handle, c.utf8(name, "name"), self._of(value))

    def gradient(self, loss, of):
        """The derivatives of `loss`, one number, with respect to a value, or to each of a list."""
        single = isinstance(of, Value)
        wanted = [of] if single else list(of)
        made = (c.ValueStruct * max(len(wanted), 1))()
        c.call("brrr_graph_gradient", self._open_handle, self._of(loss), self._values(wanted),
               len(wanted), made)
        values = [Value(self, c.ValueStruct(v.node, v.port)) for v in made[:len(wanted)]]
        return values[0] if single else values

    def compile(self, weights=None, seed=0, **options):
        """A Module that computes the outputs. weights: a dict of arrays by the names of parameters;
        those that are left out have their initial values by `seed`. options: those of brrr.load()."""
        names, tensors, count, keep = named(weights or {}, "weight")
        array, option_count = c.options_of(options)
        module = c.made("brrr_graph_compile", self._open_handle, names, tensors, count, seed,
                        array, option_count)
        return Module(module, keep)

    def __str__(self):
        return c.take_text(c.made("brrr_graph_text", self._open_handle)).decode()

    def _of(self, value):
        if not isinstance(value, Value):
            raise TypeError(f"expected a value of the graph; got {type(value).__name__}")
        if value.graph is not self:
            raise ValueError("this is a value of another graph")
        return value._value

    def _values(self, values):
        return (c.ValueStruct * max(len(values), 1))(*[self._of(v) for v in values])


__all__ = ["Graph", "Value"]
assert ctypes.sizeof(c_void_p) == 8, "Brrr has 64-bit libraries only"
