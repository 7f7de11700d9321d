"""Tensors, and how arrays of others get into the library without a copy."""

import ctypes
import sys
from ctypes import POINTER, byref, c_int, c_int32, c_int64, c_ssize_t, c_void_p, py_object

from . import _library as c

_FORMATS = {"f32": "f", "f64": "d", "f16": "e", "i32": "i", "i64": "q", "i8": "b", "u8": "B",
            "bool": "?", "i16": "h", "u16": "H", "u32": "I", "u64": "Q"}
_TYPESTR = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i32": "<i4", "i64": "<i8", "i8": "|i1",
            "u8": "|u1", "bool": "|b1", "i16": "<i2", "u16": "<u2", "u32": "<u4", "u64": "<u8"}
_BY_TYPESTR = {typestr: name for name, typestr in _TYPESTR.items()}
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_MANAGED_DELETER_OFFSET = 56  # of DLManagedTensor: 48 bytes of DLTensor, manager_ctx, deleter


class Tensor(c.Handle):
    """Numbers of one dtype in row-major order: what a model gives.

    NumPy and torch take it without a copy: ``t.numpy()``, ``numpy.asarray(t)``,
    ``torch.from_dlpack(t)``; such arrays keep the memory alive.
    """

    _free = "brrr_tensor_free"

    @classmethod
    def zeros(cls, shape, dtype="f32"):
        """A tensor of zeros. shape: sizes, () for one number."""
        return cls(c.made("brrr_tensor_create", c.dtype_code(dtype), *c.sizes_of(shape)))

    @property
    def shape(self):
        """The sizes, a tuple."""
        rank = c.lib().brrr_tensor_rank(self._open_handle)
        return tuple(c.lib().brrr_tensor_sizes(self._open_handle)[:rank])

    @property
    def dtype(self):
        """The dtype by name: "f32", "bf16", "i64", ..."""
        return c.DTYPES[c.lib().brrr_tensor_dtype(self._open_handle)]

    @property
    def nbytes(self):
        """Bytes of the numbers."""
        return c.lib().brrr_tensor_bytes(self._open_handle)

    @property
    def __array_interface__(self):
        dtype = self.dtype
        if dtype not in _TYPESTR:
            raise AttributeError(f"NumPy has no dtype {dtype}")
        pointer = c.lib().brrr_tensor_data(self._open_handle)
        return {"version": 3, "shape": self.shape, "typestr": _TYPESTR[dtype],
                "data": (pointer or 0, False)}

    def numpy(self):
        """A numpy array over the same memory; of bf16, which NumPy lacks, a copy in float32."""
        import numpy
        if 0 in self.shape and self.dtype in _TYPESTR:
            return numpy.empty(self.shape, _TYPESTR[self.dtype])
        if self.dtype == "bf16":
            bits = numpy.frombuffer(self._bytes(), numpy.uint16).astype(numpy.uint32) << 16
            return bits.view(numpy.float32).reshape(self.shape)
        if self.dtype not in _TYPESTR:
            raise TypeError(f"NumPy has no dtype {self.dtype}")
        return numpy.asarray(_Interface(self))

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to make {dtype} of {self.dtype}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _bytes(self):
        pointer = c.lib().brrr_tensor_data(self._open_handle)
        view = (ctypes.c_uint8 * self.nbytes).from_address(pointer or 0)
        view._keep = self
        return view

    def tolist(self):
        """Nested lists of Python numbers, one number for a tensor without axes."""
        dtype = self.dtype
        if dtype not in _FORMATS:
            return self.numpy().tolist()
        if 0 in self.shape:
            return _empty_lists(self.shape)
        view = memoryview(self._bytes()).cast("B")
        if not self.shape:
            return view.cast(_FORMATS[dtype])[0]
        return view.cast(_FORMATS[dtype], self.shape).tolist()

    def item(self):
        """The one number of the tensor."""
        number = self.tolist()
        while isinstance(number, list):
            if len(number) != 1:
                raise ValueError(f"expected a tensor of one number; this one has the shape "
                                 f"{list(self.shape)}")
            number = number[0]
        return number

    def __len__(self):
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __dlpack_device__(self):
        return (1, 0)  # the memory of the host

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device not in (None, (1, 0)) or copy:
            raise BufferError("this tensor lies in the memory of the host and is not copied")
        managed = c.made("brrr_tensor_to_dlpack", self._open_handle)
        return _new_capsule(managed, b"dltensor", _DESTROY_CAPSULE)

    def __repr__(self):
        return f"<brrr.Tensor {self.dtype}[{','.join(map(str, self.shape))}]>"


class _Interface:
    """What numpy.asarray() keeps: the memory of a tensor."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.__array_interface__ = tensor.__array_interface__


def _empty_lists(shape):
    if not shape[0] or len(shape) == 1:
        return []
    return [_empty_lists(shape[1:]) for _ in range(shape[0])]


# ---- capsules of DLPack ----------------------------------------------------------------------

_api = ctypes.pythonapi
_CAPSULE_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)
_new_capsule = _api.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = py_object, [c_void_p, ctypes.c_char_p,
                                                          _CAPSULE_DESTRUCTOR]
# By address: while a capsule is destroyed there must be no further reference to it.
_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_USED = b"used_dltensor"


def _destroy(capsule):
    if _is_valid(capsule, b"dltensor"):  # nobody took it over
        managed = _pointer_of(capsule, b"dltensor")
        deleter = c_void_p.from_address(managed + _MANAGED_DELETER_OFFSET).value
        if deleter:
            _DELETER(deleter)(managed)


_DESTROY_CAPSULE = _CAPSULE_DESTRUCTOR(_destroy)


def _from_dlpack(array):
    capsule = array.__dlpack__()
    address = id(capsule)
    if not _is_valid(address, b"dltensor"):
        raise TypeError(f"{type(array).__name__}.__dlpack__() gave no capsule 'dltensor'")
    handle = c.made("brrr_tensor_from_dlpack", _pointer_of(address, b"dltensor"))
    _rename(address, _USED)
    return Tensor(handle)


# ---- arrays of others -------------------------------------------------------------------------


class _Buffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t),
                ("readonly", c_int), ("ndim", c_int), ("format", ctypes.c_char_p),
                ("shape", POINTER(c_ssize_t)), ("strides", POINTER(c_ssize_t)),
                ("suboffsets", POINTER(c_ssize_t)), ("internal", c_void_p)]


_get_buffer = _api.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = c_int, [py_object, POINTER(_Buffer), c_int]
_release_buffer = _api.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [POINTER(_Buffer)]
_C_CONTIGUOUS_WITH_FORMAT = 0x0020 | 0x0010 | 0x0008 | 0x0004


class _HeldBuffer:
    def __init__(self, array):
        self.view = _Buffer()
        _get_buffer(array, byref(self.view), _C_CONTIGUOUS_WITH_FORMAT)

    def __del__(self):
        _release_buffer(byref(self.view))


def _borrow(dtype, shape, pointer, keep):
    tensor = Tensor(c.made("brrr_tensor_borrow", c.dtype_code(dtype), *c.sizes_of(shape), pointer,
                           None, None))
    tensor._keep = keep
    return tensor


def _from_buffer(array, what):
    view = memoryview(array)
    if not view.c_contiguous:
        raise ValueError(f"{what}: expected memory in row-major order")
    formats = {"f": "f32", "d": "f64", "e": "f16", "b": "i8", "B": "u8", "?": "bool", "h": "i16",
               "H": "u16", "c": "u8"}
    code = view.format.lstrip("@=<")
    dtype = formats.get(code)
    if code in ("i", "l", "q"):
        dtype = f"i{8 * view.itemsize}"
    if code in ("I", "L", "Q"):
        dtype = f"u{8 * view.itemsize}"
    if dtype is None:
        raise TypeError(f"{what}: there is no dtype for elements of format '{view.format}'")
    held = _HeldBuffer(array)
    return _borrow(dtype, view.shape, held.view.buf, held)


def to_tensor(value, what, dtype=None):
    """A Tensor over the memory of `value`: a Tensor, a NumPy array, whatever has __dlpack__ (torch)
    or a buffer. Numbers and lists become an array of `dtype`, which needs NumPy. Arrays that are
    not in row-major order are copied. Raises TypeError for anything else."""
    if isinstance(value, Tensor):
        value._open_handle
        return value
    interface = getattr(value, "__array_interface__", None)
    if interface is not None and not hasattr(value, "detach"):
        if interface["typestr"] not in _BY_TYPESTR:
            raise TypeError(f"{what}: there is no dtype for elements of {interface['typestr']}")
        if interface.get("strides") is not None:
            import numpy
            value = numpy.asarray(value, order="C")
            interface = value.__array_interface__
        return _borrow(_BY_TYPESTR[interface["typestr"]], interface["shape"],
                       interface["data"][0], value)
    if hasattr(value, "__dlpack__"):
        if hasattr(value, "detach"):  # torch: without its history, and in rows
            value = value.detach().contiguous()
        return _from_dlpack(value)
    if isinstance(value, (bool, int, float, list, tuple)):
        import numpy
        try:
            array = numpy.asarray(value, _TYPESTR.get(dtype))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
        return to_tensor(array, what)
    try:
        memoryview(value)
    except TypeError:
        raise TypeError(f"{what}: expected an array (NumPy, DLPack or a buffer); got "
                        f"{type(value).__name__}") from None
    return _from_buffer(value, what)


def named(values, what, dtypes=()):
    """(names, tensors, count, keep) for C of a dict of arrays."""
    if not hasattr(values, "items"):
        raise TypeError(f"{what}: expected a dict of arrays by name; got {type(values).__name__}")
    names, count = c.texts(values, what)
    dtypes = dict(dtypes)
    keep = [to_tensor(value, f"{what} '{name}'", dtypes.get(name))
            for name, value in values.items()]
    return names, (c_void_p * count)(*[t._handle.value for t in keep]), count, keep


def take_all(handle):
    """A dict of the tensors of a brrr_tensors, which is freed."""
    try:
        found = {}
        for i in range(c.lib().brrr_tensors_count(handle)):
            name = c.lib().brrr_tensors_name(handle, i).decode()
            found[name] = Tensor(c.made("brrr_tensors_get", handle, i))
        return found
    finally:
        c.lib().brrr_tensors_free(handle)


assert sys.byteorder == "little", "Brrr runs on little-endian processors"
__all__ = ["Tensor"]
