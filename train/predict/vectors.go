// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// The formats of vectors besides JSONLines, which lie in files.
const (
	NPY         = "npy"
	SafeTensors = "safetensors"
)

// VectorWriter takes vectors in the order of their inputs. Close ends what is written.
type VectorWriter interface {
	Write(items []Item, vectors [][]float32) error
	Close() error
}

// VectorFormat tells the format by the name of a file.
func VectorFormat(path string) string {
	switch {
	case strings.HasSuffix(path, ".npy"):
		return NPY
	case strings.HasSuffix(path, ".safetensors"):
		return SafeTensors
	}
	return JSONLines
}

// NewVectorLines writes vectors as JSON lines; keep names what is copied.
func NewVectorLines(w io.Writer, keep []string) VectorWriter { return &vectorLines{w, keep} }

type vectorLines struct {
	w    io.Writer
	keep []string
}

func (w *vectorLines) Write(items []Item, vectors [][]float32) error {
	var b bytes.Buffer
	for i, item := range items {
		fields := []field{{"file", item.File}}
		if item.Line > 0 {
			fields = append(fields, field{"line", item.Line})
		}
		for k, name := range w.keep {
			fields = append(fields, field{name, item.Kept[k]})
		}
		if err := writeObject(&b, append(fields, field{"vector", vectors[i]})); err != nil {
			return fmt.Errorf("%s: %w", item.Place(), err)
		}
		b.WriteByte('\n')
	}
	_, err := w.w.Write(b.Bytes())
	return err
}

func (w *vectorLines) Close() error { return nil }

// matrixFile is a matrix of float32 [inputs, width] behind a head that says how many rows
// there are, which nobody knows before the last: so the head has room, and is written again.
type matrixFile struct {
	f     *os.File
	w     *bufio.Writer
	width int
	rows  int
	head  func(rows, width int) ([]byte, error) // always of one length
}

// NewVectorFile writes vectors of a width to f as a matrix, in the format npy or safetensors,
// where the matrix is called vectors. f must be a file in which one can go back.
func NewVectorFile(f *os.File, format string, width int) (VectorWriter, error) {
	heads := map[string]func(rows, width int) ([]byte, error){NPY: npyHead, SafeTensors: safeTensorsHead}
	w := &matrixFile{f: f, w: bufio.NewWriterSize(f, 1<<20), width: width, head: heads[format]}
	if w.head == nil {
		return nil, fmt.Errorf("the format of the vectors is %q, want jsonl, npy or safetensors", format)
	}
	head, err := w.head(0, width)
	if err == nil {
		_, err = w.w.Write(head)
	}
	return w, err
}

func (w *matrixFile) Write(_ []Item, vectors [][]float32) error {
	for _, v := range vectors {
		if err := binary.Write(w.w, binary.LittleEndian, v); err != nil {
			return err
		}
	}
	w.rows += len(vectors)
	return nil
}

// Close writes the head again. The file stays open.
func (w *matrixFile) Close() error {
	head, err := w.head(w.rows, w.width)
	if err != nil {
		return err
	}
	if err := w.w.Flush(); err != nil {
		return err
	}
	_, err = w.f.WriteAt(head, 0)
	return err
}

const headRoom = 256 // bytes of a head

// padded fills a head with spaces.
func padded(before []byte, text string, end string) ([]byte, error) {
	room := headRoom - len(before) - len(text) - len(end)
	if room < 0 {
		return nil, errors.New("predict: the head of the file of vectors has no room")
	}
	return append(before, text+strings.Repeat(" ", room)+end...), nil
}

// npyHead is that of NumPy's format 1.0.
func npyHead(rows, width int) ([]byte, error) {
	before := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), headRoom-10)
	return padded(before, fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", rows, width), "\n")
}

func safeTensorsHead(rows, width int) ([]byte, error) {
	text, err := json.Marshal(map[string]any{"vectors": map[string]any{"dtype": "F32", "shape": []int{rows, width}, "data_offsets": []int{0, 4 * rows * width}}})
	if err != nil {
		return nil, err
	}
	return padded(binary.LittleEndian.AppendUint64(nil, headRoom-8), string(text), "")
}
