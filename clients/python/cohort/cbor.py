# SPDX-License-Identifier: Apache-2.0
"""The part of CBOR (RFC 8949) that the wire format uses.

Tensors are not values of their own here: they are tag 17231 on an index into
the message's list of them, which the caller's functions translate.
"""

import array
import datetime
import re
import struct
import sys

MAX_DEPTH = 64
TENSOR = 17231

# RFC 8746, elements little endian: tag to the code of array.array.
_TYPED = {69: "H", 70: "I", 71: "Q", 72: "b", 77: "h", 78: "i", 79: "q", 85: "f", 86: "d"}
_SIZES = {"b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8}
_BY_KIND = {("int", 1): 72, ("int", 2): 77, ("int", 4): 78, ("int", 8): 79,
            ("uint", 2): 69, ("uint", 4): 70, ("uint", 8): 71, ("float", 4): 85, ("float", 8): 86}


class FormatError(ValueError):
    """Bytes that are not one of our items."""


def _head(out, major, n):
    if n < 24:
        out.append(major << 5 | n)
    elif n < 1 << 8:
        out += bytes((major << 5 | 24, n))
    elif n < 1 << 16:
        out += struct.pack(">BH", major << 5 | 25, n)
    elif n < 1 << 32:
        out += struct.pack(">BI", major << 5 | 26, n)
    elif n < 1 << 64:
        out += struct.pack(">BQ", major << 5 | 27, n)
    else:
        raise FormatError("an integer of more than 64 bits")


def encode(value, tensor=None):
    """Returns the item for a value. tensor(value) returns the index of what is a tensor, None of others."""
    out = bytearray()
    _encode(out, value, tensor, 0)
    return bytes(out)


def _encode(out, v, tensor, depth):
    if depth > MAX_DEPTH:
        raise FormatError("nested deeper than %d" % MAX_DEPTH)
    if v is None:
        out.append(0xF6)
    elif v is True or v is False:
        out.append(0xF5 if v else 0xF4)
    elif isinstance(v, int):
        if v >= 0:
            _head(out, 0, v)
        else:
            _head(out, 1, -1 - v)
    elif isinstance(v, float):
        out += struct.pack(">Bd", 0xFB, v)
    elif isinstance(v, str):
        b = v.encode()
        _head(out, 3, len(b))
        out += b
    elif isinstance(v, (bytes, bytearray, memoryview)):
        b = bytes(v)
        _head(out, 2, len(b))
        out += b
    elif isinstance(v, array.array):
        _encode_numbers(out, v)
    elif isinstance(v, (list, tuple)):
        _head(out, 4, len(v))
        for x in v:
            _encode(out, x, tensor, depth + 1)
    elif isinstance(v, dict):
        _head(out, 5, len(v))
        for k, x in v.items():
            if not isinstance(k, (str, int)):
                raise TypeError("a key of type %s: texts, integers and bools can be keys" % type(k).__name__)
            _encode(out, k, tensor, depth + 1)
            _encode(out, x, tensor, depth + 1)
    elif isinstance(v, datetime.datetime):
        if v.tzinfo is None:
            raise TypeError("a time that does not know its zone: give it one, such as datetime.timezone.utc")
        _head(out, 6, 0)
        _encode(out, v.isoformat().replace("+00:00", "Z"), tensor, depth + 1)
    elif isinstance(v, datetime.timedelta):
        _encode(out, (v.days * 86400 + v.seconds) * 10**9 + v.microseconds * 1000, tensor, depth)
    else:
        index = tensor(v) if tensor else None
        if index is not None:
            _head(out, 6, TENSOR)
            _head(out, 0, index)
        elif hasattr(v, "item") and getattr(v, "shape", None) == ():  # a scalar of NumPy's
            _encode(out, v.item(), tensor, depth)
        else:
            raise TypeError("a %s cannot travel" % type(v).__name__)


def _encode_numbers(out, v):
    if v.typecode == "B":  # a byte string and a typed array of bytes are the same to Go
        b = v.tobytes()
        _head(out, 2, len(b))
        out += b
        return
    kind = "float" if v.typecode in "fd" else "int" if v.typecode.islower() else "uint"
    tag = _BY_KIND.get((kind, v.itemsize))
    if tag is None:
        raise TypeError("an array.array of type %r cannot travel" % v.typecode)
    if sys.byteorder != "little":
        v = array.array(v.typecode, v)
        v.byteswap()
    b = v.tobytes()
    _head(out, 6, tag)
    _head(out, 2, len(b))
    out += b


def decode(data, tensor=None):
    """Returns the value of data, which is just one item. tensor(index) returns a tensor."""
    d = _Decoder(memoryview(data), tensor)
    v = d.item(0)
    if d.at != len(d.data):
        raise FormatError("%d bytes behind the item" % (len(d.data) - d.at))
    return v


class _Decoder:
    def __init__(self, data, tensor):
        self.data, self.at, self.tensor = data, 0, tensor

    def take(self, n):
        if n > len(self.data) - self.at:
            raise FormatError("it ends inside of an item")
        b = self.data[self.at:self.at + n]
        self.at += n
        return b

    def head(self):
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if info < 24:
            return major, info, info
        if info > 27:
            raise FormatError("an item of indefinite length, or one that is reserved")
        return major, int.from_bytes(self.take(1 << info - 24), "big"), info

    def count(self, n, size):
        """Checks the number of elements before anything is made for them."""
        if n * size > len(self.data) - self.at:
            raise FormatError("it says that it has more elements than there are bytes")
        return n

    def text(self, n):
        try:
            return str(self.take(n), "utf-8")
        except UnicodeDecodeError:
            raise FormatError("a text that is not UTF-8") from None

    def item(self, depth):
        if depth > MAX_DEPTH:
            raise FormatError("nested deeper than %d" % MAX_DEPTH)
        major, n, info = self.head()
        if major == 0:
            return n
        if major == 1:
            return -1 - n
        if major == 2:
            return bytes(self.take(n))
        if major == 3:
            return self.text(n)
        if major == 4:
            return [self.item(depth + 1) for _ in range(self.count(n, 1))]
        if major == 5:
            out = {}
            for _ in range(self.count(n, 2)):
                k = self.item(depth + 1)
                if not isinstance(k, (str, int)):
                    raise FormatError("a map with a key that is no text, integer or bool")
                if any(k == o and type(k) is type(o) for o in (k,) if o in out):
                    raise FormatError("a map with the key %r twice" % (k,))
                out[k] = self.item(depth + 1)
            return out
        if major == 6:
            return self.tagged(n, depth)
        return self.simple(n, info)

    def simple(self, n, info):
        if info == 20 or info == 21:
            return info == 21
        if info == 22:
            return None
        if info == 25:
            return struct.unpack(">e", n.to_bytes(2, "big"))[0]
        if info == 26:
            return struct.unpack(">f", n.to_bytes(4, "big"))[0]
        if info == 27:
            return struct.unpack(">d", n.to_bytes(8, "big"))[0]
        raise FormatError("the simple value %d" % n)

    def tagged(self, tag, depth):
        v = self.item(depth + 1)
        if tag == TENSOR and self.tensor and isinstance(v, int) and v >= 0:
            return self.tensor(v)
        if tag == 0 and isinstance(v, str):
            return parse_time(v)
        if tag in _TYPED and isinstance(v, bytes):
            code = _TYPED[tag]
            if array.array(code).itemsize != _SIZES[code]:
                raise FormatError("this Python has no numbers of the size of tag %d" % tag)
            if len(v) % _SIZES[code]:
                raise FormatError("a typed array that ends inside of a number")
            out = array.array(code, v)
            if sys.byteorder != "little":
                out.byteswap()
            return out
        raise FormatError("tag %d" % tag)


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))\Z")


def parse_time(text):
    """Returns the time of a text of RFC 3339, cut to microseconds, which is what Python has."""
    m = _TIME.match(text)
    if not m:
        raise FormatError("the time %r" % text[:64])
    day, clock, fraction, sign, hours, minutes = m.groups()
    try:
        t = datetime.datetime.strptime(day + " " + clock, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise FormatError("the time %r" % text[:64]) from None
    t = t.replace(microsecond=int((fraction or "0").ljust(9, "0")[:6]))
    offset = datetime.timedelta(0)
    if sign:
        offset = datetime.timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
        if abs(offset) >= datetime.timedelta(days=1):
            raise FormatError("the time %r" % text[:64])
    return t.replace(tzinfo=datetime.timezone(offset))
