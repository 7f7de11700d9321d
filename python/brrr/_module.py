"""Models that run by the names of their inputs."""

from collections import namedtuple
from ctypes import byref

from . import _library as c
from ._tensor import named, take_all

Port = namedtuple("Port", "name dtype shape is_optional")
Port.__doc__ = """An input or output. shape: a tuple with -1 for any size, or None where nothing is
known of it; dtype: by name ("f32", "i64", ...)."""


class Module(c.Handle):
    """A model that is ready to run; brrr.load() and Graph.compile() make one.

    inputs, outputs: lists of Port.
    """

    _free = "brrr_module_free"

    def __init__(self, handle, keep=None):
        super().__init__(handle)
        self._keep = keep
        self.inputs = self._ports("input")
        self.outputs = self._ports("output")

    def _ports(self, side):
        ports = []
        for i in range(getattr(c.lib(), f"brrr_module_{side}_count")(self._handle)):
            p = c.PortStruct()
            c.call(f"brrr_module_{side}", self._handle, i, byref(p))
            shape = tuple(p.sizes[:p.rank]) if p.has_shape else None
            ports.append(Port(p.name.decode(), c.DTYPES[p.dtype], shape, bool(p.is_optional)))
        return ports

    def run(self, inputs, outputs=None):
        """Computes outputs from inputs, a dict of arrays by name.

        inputs: NumPy arrays, torch tensors, brrr.Tensor, or what has __dlpack__ or a buffer, of the
            dtypes and shapes of ``self.inputs``; lists and numbers take the dtype of the input.
        outputs: names; the others are not computed. None: all.
        Returns a dict of Tensor by name. The first run with inputs of new shapes compiles a program.
        Raises ValueError for a wrong name, dtype or shape, TypeError for what is no array,
        MemoryError where it does not fit.
        """
        if isinstance(outputs, str):
            outputs = [outputs]
        dtypes = [(port.name, port.dtype) for port in self.inputs]
        names, tensors, count, keep = named(inputs, "input", dtypes)
        wanted, wanted_count = c.texts(outputs or [], "the name of an output")
        with self._use():
            found = c.made("brrr_module_run", self._open_handle, names, tensors, count, wanted,
                           wanted_count)
        del keep
        return take_all(found)

    @property
    def copied_bytes(self):
        """Bytes of inputs that the library copied since the module was opened. An input is read
        where it lies, unless the module runs on another device than the processor, its address is
        no multiple of an element's size, or shapes depend on data."""
        return c.lib().brrr_module_copied_bytes(self._open_handle)

    def __call__(self, *arrays, **named_arrays):
        """run() with inputs in the order of ``self.inputs`` or by keyword. Returns the Tensor of a
        module with one output, else a dict of them."""
        if len(arrays) > len(self.inputs):
            raise TypeError(f"the model has {len(self.inputs)} inputs; got {len(arrays)}")
        inputs = {port.name: array for port, array in zip(self.inputs, arrays)}
        for name, array in named_arrays.items():
            if name in inputs:
                raise TypeError(f"the input '{name}' is given twice")
            inputs[name] = array
        found = self.run(inputs)
        return next(iter(found.values())) if len(self.outputs) == 1 else found

    def __repr__(self):
        def text(ports):
            return ", ".join(f"{p.name}: {p.dtype}{list(p.shape) if p.shape is not None else ''}"
                             for p in ports)
        return f"<brrr.Module ({text(self.inputs)}) -> ({text(self.outputs)})>"


def load(path, **options):
    """Opens a model to run it on tensors.

    path: a model folder, a name of the Hugging Face Hub (in its cache, or downloaded), a GGUF file,
        an ONNX file or a .brrr file. Weights stay in the files, which must not change.
    options: precision ("fp32", "bf16", "int8", ...), device, memory_limit ("2GiB"), threads,
        disable_pass.
    Returns a Module. Raises ValueError for a file or an option that is wrong, MemoryError.
    """
    array, count = c.options_of(options)
    return Module(c.made("brrr_module_open", c.utf8(path, "path"), array, count))
