// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"archive/zip"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/pickle"
)

const (
	// protocol is that of data.pkl; torch.load with weights_only=True wants this one.
	protocol = 2
	// alignment is what PyTorch gives the bytes of a storage, for mapping files into memory.
	alignment = 64
	// pieceBytes is how much of a tensor is in memory at a time.
	pieceBytes = 1 << 20

	topFolder = "archive"
)

// writer collects the storages of a value.
type writer struct {
	list []*Tensor
	keys map[any]int // of their storages
}

// Write writes a value as torch.save does. Beside what [File.Value] returns, except a
// [Refused], it takes a map[string]any, whose keys are sorted, a []any and an int. The bytes
// of a tensor are read while they are written, a piece at a time. torch.load opens the file
// with weights_only=True.
func Write(w io.Writer, v any) error {
	c := &writer{keys: map[any]int{}}
	tree, err := c.value(v)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := pickle.Encode(&text, tree, protocol); err != nil {
		return fmt.Errorf("torchsave: %w", err)
	}
	out := &counter{w: w}
	z := zip.NewWriter(out)
	member := func(name string, write func(w io.Writer) error) error {
		if err := z.Flush(); err != nil {
			return err
		}
		h := &zip.FileHeader{Name: topFolder + "/" + name, Method: zip.Store}
		h.Extra = padding(out.n + localBytes + int64(len(h.Name)))
		into, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		return write(into)
	}
	for _, m := range []struct {
		name string
		text []byte
	}{{"data.pkl", text.Bytes()}, {"byteorder", []byte("little")}} {
		if err := member(m.name, func(w io.Writer) error { _, err := w.Write(m.text); return err }); err != nil {
			return err
		}
	}
	for i, t := range c.list {
		if err := member("data/"+strconv.Itoa(i), t.writeTo); err != nil {
			return err
		}
	}
	if err := member("version", func(w io.Writer) error { _, err := io.WriteString(w, "3\n"); return err }); err != nil {
		return err
	}
	return z.Close()
}

// counter counts the bytes that were written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// padding returns the extra field after which the bytes of a member, whose header would end at
// the given byte, are aligned. PyTorch calls it FB, too.
func padding(at int64) []byte {
	const head = 4
	n := (alignment - (at+head)%alignment) % alignment
	return append([]byte{'F', 'B', byte(n), 0}, bytes.Repeat([]byte{'Z'}, int(n))...)
}

// writeTo writes the dense bytes of a tensor.
func (t *Tensor) writeTo(w io.Writer) error {
	size := t.NumBytes()
	piece := make([]byte, min(size, pieceBytes))
	for at := int64(0); at < size; at += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), size-at)]
		if err := t.ReadRange(piece, at); err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// value returns the pickle of a value.
func (c *writer) value(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, int, int64, float64, string:
		return v, nil
	case *Tensor:
		return c.tensor(v)
	case Refused:
		return nil, fmt.Errorf("torchsave: a tensor cannot be written: it %s", v.Reason)
	case map[string]any:
		d := &pickle.Dict{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			d.Entries = append(d.Entries, pickle.Entry{Key: key, Value: v[key]})
		}
		return c.value(d)
	case []any:
		return c.value(&pickle.List{Items: v})
	case []byte:
		var text strings.Builder
		for _, b := range v {
			text.WriteRune(rune(b))
		}
		return &pickle.Object{Class: pickle.Global{Module: "_codecs", Name: "encode"}, Args: pickle.Tuple{text.String(), "latin1"}}, nil
	case complex128:
		return &pickle.Object{Class: pickle.Global{Module: "builtins", Name: "complex"}, Args: pickle.Tuple{real(v), imag(v)}}, nil
	case pickle.Tuple:
		items, err := c.values(v)
		return pickle.Tuple(items), err
	case *pickle.List:
		items, err := c.values(v.Items)
		return &pickle.List{Items: items}, err
	case *pickle.Set:
		items, err := c.values(v.Items)
		name := "set"
		if v.Frozen {
			name = "frozenset"
		}
		return &pickle.Object{Class: pickle.Global{Module: "builtins", Name: name}, Args: pickle.Tuple{&pickle.List{Items: items}}}, err
	case *pickle.Dict:
		d := &pickle.Dict{}
		for _, e := range v.Entries {
			key, err := c.value(e.Key)
			if err != nil {
				return nil, err
			}
			value, err := c.value(e.Value)
			if err != nil {
				return nil, err
			}
			d.Entries = append(d.Entries, pickle.Entry{Key: key, Value: value})
		}
		return d, nil
	case pickle.Global:
		if !Allow(v) {
			return nil, fmt.Errorf("torchsave: the global %s cannot be written: torch.load would refuse it", v)
		}
		return v, nil
	case *pickle.Object:
		if !Allow(v.Class) || v.State != nil || v.Items != nil || v.Entries != nil {
			return nil, fmt.Errorf("torchsave: an object of %s cannot be written: torch.load would refuse it", v.Class)
		}
		args, err := c.values(v.Args)
		return &pickle.Object{Class: v.Class, Args: args, New: v.New}, err
	}
	return nil, fmt.Errorf("torchsave: a Go value of type %T cannot be written: give tensors, plain values and containers of these", v)
}

func (c *writer) values(in []any) ([]any, error) {
	out := make([]any, len(in))
	for i, v := range in {
		var err error
		if out[i], err = c.value(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tensor returns the call that makes a tensor, and notes its storage. A tensor that is at
// several places has one storage, as has the same view of a storage of a file.
func (c *writer) tensor(t *Tensor) (any, error) {
	if t.dtype == nil {
		return nil, fmt.Errorf("torchsave: tensor %q is of %v, which PyTorch does not have", t.Name, t.DType)
	}
	numBytes := t.NumBytes()
	if numBytes < 0 {
		return nil, fmt.Errorf("torchsave: tensor %q has the shape %v, which no tensor has", t.Name, t.Shape)
	}
	key := any(t)
	if t.stored != nil {
		key = struct {
			s    *storage
			view string
		}{t.stored, fmt.Sprint(t.Offset, t.Shape, t.Strides)}
	}
	n, found := c.keys[key]
	if !found {
		n = len(c.list)
		c.keys[key] = n
		c.list = append(c.list, t)
	}
	numElems := numBytes / int64(t.dtype.size)
	shape, strides := make(pickle.Tuple, len(t.Shape)), make(pickle.Tuple, len(t.Shape))
	stride := int64(1)
	for d := len(t.Shape) - 1; d >= 0; d-- {
		shape[d], strides[d] = int64(t.Shape[d]), stride
		stride *= int64(max(t.Shape[d], 1))
	}
	torch := func(name string) pickle.Global { return pickle.Global{Module: "torch", Name: name} }
	utils := func(name string) pickle.Global { return pickle.Global{Module: "torch._utils", Name: name} }
	ordered := &pickle.Object{Class: pickle.Global{Module: "collections", Name: "OrderedDict"}, Args: pickle.Tuple{}}
	class, size, call := torch(t.dtype.storage), numElems, utils("_rebuild_tensor_v2")
	if t.dtype.storage == "" {
		class, size, call = pickle.Global{Module: "torch.storage", Name: "UntypedStorage"}, numBytes, utils("_rebuild_tensor_v3")
	}
	id := pickle.Tuple{"storage", class, strconv.Itoa(n), "cpu", size}
	args := pickle.Tuple{&pickle.Persistent{ID: id}, int64(0), shape, strides, t.RequiresGrad && !t.IsParameter, ordered}
	if t.dtype.storage == "" {
		args = append(args, torch(t.dtype.name))
	}
	made := &pickle.Object{Class: call, Args: args}
	if t.IsParameter {
		made = &pickle.Object{Class: utils("_rebuild_parameter"), Args: pickle.Tuple{made, t.RequiresGrad, ordered}}
	}
	return made, nil
}

// Save writes a value to the file at path. The file appears whole, and is on the disk when Save
// returns; a file that is there is replaced.
func Save(path string, v any) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-")
	if err != nil {
		return fmt.Errorf("torchsave: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("torchsave: save %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	b := bufio.NewWriterSize(f, pieceBytes)
	write := func() error {
		if err := Write(b, v); err != nil {
			return err
		}
		if err := b.Flush(); err != nil {
			return err
		}
		if err := f.Chmod(0o644); err != nil {
			return err
		}
		return f.Sync()
	}
	if err := errors.Join(write(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
