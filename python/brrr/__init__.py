"""Brrr trains, compresses and runs neural nets on plain CPUs.

    brrr.load("model.onnx")(x)                            any model on tensors
    brrr.embed("minilm/", ["a text", "another"])          vectors of texts
    brrr.generate("gpt2", "In the beginning")             texts continued
    brrr.train(preset="char-cpu", text="notes.txt")       `brrr train`
    brrr.Run(...), brrr.Graph()                           a loop, and a model, of your own

Options are those of the command line with "_" for "-". Errors are brrr.Error; those of a wrong file,
shape, name or value are ValueError, too, and those of memory MemoryError. Calls release the GIL; an
object that is in use lets other threads wait. Nothing may be called in a fork of a process that used
Brrr: start processes by "spawn".
"""

from ._graph import Graph, Value
from ._library import Error, InvalidError, NoMemoryError, Stopped
from ._module import Module, Port, load
from ._run import Evaluation, Plan, Run, Step, train
from ._tensor import Tensor
from ._text import ChatTemplate, Embedder, Generator, Tokenizer, embed, generate

__all__ = ["ChatTemplate", "Embedder", "Error", "Evaluation", "Generator", "Graph", "InvalidError",
           "Module", "NoMemoryError", "Plan", "Port", "Run", "Step", "Stopped", "Tensor", "Tokenizer",
           "Value", "embed", "generate", "load", "on_note", "train", "version"]

_note = None


def version():
    """The version of the library: "0.1.0"."""
    from . import _library
    return _library.lib().brrr_version().decode()


def on_note(callback):
    """callback(line) gets each line that the command line would write to standard error, from
    whichever thread; None drops them, as they are from the start."""
    global _note
    from . import _library

    def forward(_, line):
        callback(line.decode("utf-8", "replace"))

    made = _library.ON_NOTE(forward if callback is not None else 0)
    _library.lib().brrr_set_on_note(made, None)
    _note = made  # the library calls it from now on
