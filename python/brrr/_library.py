"""The C interface (brrr_c.h) by ctypes: where the library is found, its functions, its errors."""

import ctypes
import os
import threading
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32,
                    c_int64, c_size_t, c_uint32, c_void_p)

ABI_VERSION = 1
DTYPES = ("f32", "f64", "bf16", "f16", "i32", "i64", "i8", "u8", "bool", "f8e4m3", "f8e5m2",
          "i16", "u16", "u32", "u64")


class Error(Exception):
    """What Brrr refuses or fails at; the text is the sentence of the command line."""


class InvalidError(Error, ValueError):
    """A file, a shape, a name, an option or a value is wrong."""


class NoMemoryError(Error, MemoryError):
    """It does not fit into the memory limit."""


class Stopped(Error):
    """A callback asked to stop."""


class Option(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class PortStruct(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("has_shape", c_int), ("rank", c_int),
                ("sizes", POINTER(c_int64)), ("is_optional", c_int)]


class ValueStruct(Structure):
    _fields_ = [("node", c_uint32), ("port", c_uint32)]


class StepStruct(Structure):
    _fields_ = [("step", c_int64), ("loss", c_double), ("grad_norm", c_double),
                ("learning_rate", c_double), ("loss_scale", c_double), ("seconds", c_double),
                ("tokens", c_int64)]


class PlanStruct(Structure):
    _fields_ = [(name, c_int64) for name in
                ("parameter_bytes", "state_bytes", "activation_bytes", "arena_bytes",
                 "process_bytes", "limit_bytes")]


ON_NOTE = CFUNCTYPE(None, c_void_p, c_char_p)
ON_TEXT = CFUNCTYPE(c_int, c_void_p, c_size_t, c_char_p)
ON_STEP = CFUNCTYPE(c_int, c_void_p, POINTER(StepStruct))

_handle, _out = c_void_p, POINTER(c_void_p)
_texts, _handles, _options = POINTER(c_char_p), POINTER(c_void_p), POINTER(Option)
_sizes, _values = POINTER(c_int64), POINTER(ValueStruct)
_opens = [c_char_p, _options, c_size_t, _out]

# Functions that return a status.
_STATUS = {
    "brrr_require_abi": [c_int],
    "brrr_tensor_create": [c_int, _sizes, c_int, _out],
    "brrr_tensor_borrow": [c_int, _sizes, c_int, c_void_p, c_void_p, c_void_p, _out],
    "brrr_tensor_to_dlpack": [_handle, _out],
    "brrr_tensor_from_dlpack": [c_void_p, _out],
    "brrr_tensors_get": [_handle, c_size_t, _out],
    "brrr_module_open": _opens,
    "brrr_module_input": [_handle, c_size_t, POINTER(PortStruct)],
    "brrr_module_output": [_handle, c_size_t, POINTER(PortStruct)],
    "brrr_module_run": [_handle, _texts, _handles, c_size_t, _texts, c_size_t, _out],
    "brrr_embedder_open": _opens,
    "brrr_embed": [_handle, _texts, c_size_t, _out],
    "brrr_generator_open": _opens,
    "brrr_generate": [_handle, _texts, c_size_t, ON_TEXT, c_void_p, _out],
    "brrr_tokenizer_open": [c_char_p, _out],
    "brrr_tokenizer_encode": [_handle, c_char_p, c_size_t, c_int, _out],
    "brrr_tokenizer_decode": [_handle, POINTER(c_int32), c_size_t, _out, POINTER(c_size_t)],
    "brrr_chat_template_open": [c_char_p, _out],
    "brrr_chat_template_render": [_handle, _texts, _texts, c_size_t, _out],
    "brrr_graph_create": [_out],
    "brrr_graph_parse": [c_char_p, _out],
    "brrr_graph_text": [_handle, _out],
    "brrr_graph_input": [_handle, c_char_p, c_int, _sizes, c_int, _values],
    "brrr_graph_parameter": [_handle, c_char_p, _sizes, c_int, c_char_p, _values],
    "brrr_graph_constant": [_handle, c_int, _sizes, c_int, c_double, _values],
    "brrr_graph_call": [_handle, c_char_p, _values, c_size_t, c_char_p, _values, c_size_t,
                        POINTER(c_size_t)],
    "brrr_graph_mean": [_handle, ValueStruct, _sizes, c_size_t, _values],
    "brrr_graph_dropout": [_handle, ValueStruct, c_double, _values],
    "brrr_graph_output": [_handle, c_char_p, ValueStruct],
    "brrr_graph_type": [_handle, ValueStruct, POINTER(c_int), POINTER(c_int), _sizes, c_size_t],
    "brrr_graph_gradient": [_handle, ValueStruct, _values, c_size_t, _values],
    "brrr_graph_compile": [_handle, _texts, _handles, c_size_t, c_uint32, _options, c_size_t,
                           _out],
    "brrr_run_create": [_handle, c_char_p, _options, c_size_t, _out],
    "brrr_run_step": [_handle, _texts, _handles, c_size_t, POINTER(StepStruct)],
    "brrr_run_evaluate": [_handle, _texts, _handles, c_size_t, POINTER(c_double)],
    "brrr_run_evaluate_graph": [_handle, _handle, _texts, c_size_t, _texts, _handles, c_size_t,
                                c_size_t, POINTER(c_double), POINTER(c_int64)],
    "brrr_run_plan": [_handle, POINTER(PlanStruct)],
    "brrr_run_gather": [_handle, _handle, c_int64, _out],
    "brrr_run_forecast": [_handle, c_int, POINTER(c_double)],
    "brrr_run_parameter": [_handle, c_char_p, _out],
    "brrr_run_time_steps": [_handle, c_int],
    "brrr_run_profile": [_handle, _out],
    "brrr_run_save": [_handle, c_char_p],
    "brrr_run_save_state": [_handle, c_char_p],
    "brrr_run_load_state": [_handle, c_char_p],
    "brrr_train": [_options, c_size_t, ON_STEP, c_void_p, _out],
}
# Functions that return what they are asked for.
_PLAIN = {
    "brrr_version": (c_char_p, []),
    "brrr_last_error": (c_char_p, []),
    "brrr_text_free": (None, [c_void_p]),
    "brrr_set_on_note": (None, [ON_NOTE, c_void_p]),
    "brrr_tensor_dtype": (c_int, [_handle]),
    "brrr_tensor_rank": (c_int, [_handle]),
    "brrr_tensor_sizes": (_sizes, [_handle]),
    "brrr_tensor_data": (c_void_p, [_handle]),
    "brrr_tensor_bytes": (c_size_t, [_handle]),
    "brrr_tensors_count": (c_size_t, [_handle]),
    "brrr_tensors_name": (c_char_p, [_handle, c_size_t]),
    "brrr_module_input_count": (c_size_t, [_handle]),
    "brrr_module_output_count": (c_size_t, [_handle]),
    "brrr_module_copied_bytes": (c_int64, [_handle]),
    "brrr_run_copied_bytes": (c_int64, [_handle]),
    "brrr_tokenizer_size": (c_int32, [_handle]),
    "brrr_tokenizer_begin": (c_int32, [_handle]),
    "brrr_tokenizer_end": (c_int32, [_handle]),
    "brrr_run_max_steps": (c_int64, [_handle]),
    "brrr_run_steps_done": (c_int64, [_handle]),
    "brrr_run_accumulation": (c_int64, [_handle]),
    "brrr_run_rank": (c_int64, [_handle]),
    "brrr_run_ranks": (c_int64, [_handle]),
}
_PLAIN.update({f"brrr_{kind}_free": (None, [_handle]) for kind in
               ("tensor", "tensors", "module", "embedder", "generator", "tokenizer",
                "chat_template", "graph", "run")})

_HERE = os.path.dirname(os.path.abspath(__file__))
_lock = threading.Lock()
_library = None


def library_path():
    """The library: that of BRRR_LIBRARY, that of this package, else the system's."""
    given = os.environ.get("BRRR_LIBRARY")
    if given:
        return given
    bundled = os.path.join(_HERE, "lib", "libbrrr.so.0")
    return bundled if os.path.exists(bundled) else "libbrrr.so.0"


def lib():
    """The library, loaded at the first use."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def _load():
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"Brrr's library {path} could not be loaded: {error}; install Brrr, or "
                          "name the library in BRRR_LIBRARY") from None
    declared = {name: (c_int, arguments) for name, arguments in _STATUS.items()}
    declared.update(_PLAIN)
    missing = [name for name in declared if not hasattr(loaded, name)]
    for name in declared.keys() - set(missing):
        function = getattr(loaded, name)
        function.restype, function.argtypes = declared[name]
    if {"brrr_require_abi", "brrr_last_error", "brrr_version"} & set(missing):
        raise ImportError(f"{path} is not Brrr's library")
    if loaded.brrr_require_abi(ABI_VERSION) != 0:
        raise ImportError(loaded.brrr_last_error().decode())
    if missing:
        raise ImportError(f"Brrr's library {path}, version {loaded.brrr_version().decode()}, is older "
                          f"than this package: it has no {missing[0]}; install the one of the "
                          "package's version")
    return loaded


def error_of(status):
    """The exception of a status that is not 0."""
    text = lib().brrr_last_error().decode("utf-8", "replace")
    kinds = {1: InvalidError, 2: InvalidError, 3: NoMemoryError, 4: Stopped}
    return kinds.get(status, Error)(text)


def call(name, *arguments):
    """Calls a function that returns a status and raises its error."""
    status = getattr(lib(), name)(*arguments)
    if status != 0:
        raise error_of(status)


def made(name, *arguments):
    """The handle that the function writes through its last parameter."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def utf8(text, what):
    """A text for C. Raises TypeError for what is no text, ValueError for a zero character."""
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{what}: expected a text; got {type(text).__name__}")
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError(f"{what}: a text must not hold the character 0")
    return encoded


def texts(list_of_texts, what):
    """(array, count) of texts for C."""
    encoded = [utf8(text, what) for text in list_of_texts]
    return (c_char_p * len(encoded))(*encoded), len(encoded)


def take_text(handle):
    """The bytes of a text that C made, which is given back."""
    try:
        return ctypes.string_at(handle.value)
    finally:
        lib().brrr_text_free(handle)


def sizes_of(shape):
    """(array, rank) of a shape for C."""
    if isinstance(shape, int):
        shape = (shape,)
    return (c_int64 * len(shape))(*[_integer(size) for size in shape]), len(shape)


def _integer(size):
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a shape has whole numbers; got {type(size).__name__}")
    return size.__index__()


def dtype_code(dtype):
    """The number of a dtype by Brrr's name ("f32") or by anything that NumPy or torch calls it."""
    name = str(getattr(dtype, "name", dtype))
    if isinstance(dtype, type):
        name = dtype.__name__
    name = name.rpartition(".")[2]
    names = {"float32": "f32", "float64": "f64", "float": "f64", "bfloat16": "bf16",
             "float16": "f16", "int": "i64", "int8": "i8", "int16": "i16", "int32": "i32",
             "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
             "bool_": "bool"}
    name = names.get(name, name)
    if name not in DTYPES:
        raise ValueError(f"there is no dtype '{name}'; expected one of {', '.join(DTYPES)}")
    return DTYPES.index(name)


def options_of(options):
    """(array, count) of keyword arguments as options of the command line. None leaves an option
    out; a list gives it several times."""
    pairs = []
    for key, value in options.items():
        name = key.rstrip("_").replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is None:
                continue
            if isinstance(item, bool):
                item = "true" if item else "false"
            elif isinstance(item, (int, float)):
                item = repr(item)
            elif not isinstance(item, (str, os.PathLike)):
                # Numbers of NumPy print as numbers.
                if not hasattr(item, "__index__") and not hasattr(item, "__float__"):
                    raise TypeError(f"{name}: expected a text, a number, a bool or a list of "
                                    f"them; got {type(item).__name__}")
                item = str(item)
            pairs.append((utf8(name, "the name of an option"), utf8(item, name)))
    return (Option * len(pairs))(*pairs), len(pairs)


class Handle:
    """An object of the library: freed with the Python object, used by one thread at a time."""

    _free = ""

    def __init__(self, handle):
        self._handle = handle
        self._lock = threading.Lock()
        self._user = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if _library is not None and getattr(self, "_handle", None) is not None:
            getattr(_library, self._free)(self._handle)
            self._handle = None

    def close(self):
        """Gives back the memory now; the object cannot be used any more."""
        with self._use():
            self.__del__()

    def _use(self):
        return _Use(self)

    @property
    def _open_handle(self):
        if self._handle is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._handle


class _Use:
    """Holds an object for a call; a callback that uses it again is refused, not deadlocked."""

    def __init__(self, owner):
        self._owner = owner

    def __enter__(self):
        me = threading.get_ident()
        if self._owner._user == me:
            raise RuntimeError(f"this {type(self._owner).__name__} is in use by the call that "
                               "this callback belongs to")
        self._owner._lock.acquire()
        self._owner._user = me
        return self._owner._handle

    def __exit__(self, *_):
        self._owner._user = None
        self._owner._lock.release()
