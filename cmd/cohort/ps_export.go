// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

func newPSExportCommand() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:   "export DIR... OUT",
		Short: "Write a table of snapshots to a file of safetensors, npy or CSV",
		Long: `Write the rows of a table to OUT, in the order of their keys. The directories are
those of all servers of the job; the servers may run meanwhile. The newest snapshots
are read: cohort ps checkpoint writes them anew.

The ending of OUT says the format. OUT.safetensors has the tensors NAME.keys (int64)
and NAME.rows (float32). OUT.npy has the rows, and OUT.keys.npy beside it the keys.
OUT.csv has a line for each row: the key, then the values.`,
		Example: `  cohort ps export --table user ps/0 ps/1 user.safetensors`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{errors.New("ps export needs the directories of all servers, and the file to write")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, out := args[:len(args)-1], args[len(args)-1]
			write, err := exporterOf(out)
			if err != nil {
				return usageError{err}
			}
			set, err := openSnapshots(dirs, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if table == "" && len(set.schemas()) == 1 {
				table = set.schemas()[0].Name
			}
			number := slices.IndexFunc(set.schemas(), func(s rows.Schema) bool { return s.Name == table })
			if number < 0 {
				var names []string
				for _, s := range set.schemas() {
					names = append(names, s.Name)
				}
				return unknownTable(table, names)
			}
			schema := set.schemas()[number]
			schema.Memory = 0 // for this table has no directory
			all, err := rows.New(schema, rows.Options{})
			if err != nil {
				return err
			}
			defer all.Close()
			for _, s := range set {
				if err := s.Records(number, func(r rows.Record) error { _, err := all.Put(r); return err }); err != nil {
					return err
				}
			}
			keys, err := keysOf(all)
			if err != nil {
				return err
			}
			if err := write(out, exported{all, keys}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of table %q in %s\n", plural(len(keys), "row"), table, out)
			return err
		},
	}
	cmd.Flags().StringVar(&table, "table", "", "write the table `NAME`; not needed if there is only one")
	return cmd
}

// snapshots are those of all servers of a job, by their numbers.
type snapshots []*journal.Loaded

func (s snapshots) schemas() []rows.Schema {
	var all []rows.Schema
	for _, t := range s[0].Manifest().Tables {
		all = append(all, t.Schema)
	}
	return all
}

// openSnapshots opens the newest snapshot of each directory. The directories must be those of all
// servers of one job.
func openSnapshots(dirs []string, stderr io.Writer) (snapshots, error) {
	var set snapshots
	for i, dir := range dirs {
		l, skipped, err := journal.Load(dir)
		if err != nil {
			return nil, err
		}
		for _, s := range skipped {
			fmt.Fprintf(stderr, "cohort: an older snapshot is read: %v\n", s)
		}
		m := l.Manifest()
		if set == nil {
			if m.Servers != len(dirs) {
				return nil, usageError{fmt.Errorf("%s is of one of %s: give the directories of all, not of %d", dir, plural(m.Servers, "server"), len(dirs))}
			}
			set = make(snapshots, m.Servers)
		}
		if m.Servers != len(dirs) {
			return nil, usageError{fmt.Errorf("%s is of one of %s, and %s of one of %d", dir, plural(m.Servers, "server"), dirs[0], len(dirs))}
		}
		if set[m.Server] != nil {
			return nil, usageError{fmt.Errorf("two directories are of server %d; the second is %s", m.Server, dir)}
		}
		set[m.Server] = l
		if i == 0 {
			continue
		}
		first, _, err := journal.Load(dirs[0])
		if err != nil {
			return nil, err
		}
		f := first.Manifest()
		same := f.Job == m.Job && slices.EqualFunc(f.Tables, m.Tables, func(a, b journal.ManifestTable) bool { return a.Schema == b.Schema })
		if !same {
			return nil, fmt.Errorf("%s and %s are snapshots of different jobs or tables: give the directories of one job", dirs[0], dir)
		}
	}
	return set, nil
}

// keysOf returns the keys that have rows, in increasing order.
func keysOf(t *rows.Table) ([]int64, error) {
	keys := make([]int64, 0, t.Len())
	err := t.Scan(0, func(r rows.Record) error {
		if r.Row != nil {
			keys = append(keys, r.Key)
		}
		return nil
	})
	slices.Sort(keys)
	return keys, err
}

// exported is a table with its keys.
type exported struct {
	*rows.Table
	keys []int64
}

// each gives the values of all rows to fn, some thousand rows at a time, as little-endian float32.
func (e exported) each(fn func(keys []int64, values []byte) error) error {
	const together = 4096
	buf := make([]byte, together*4*e.Schema().Width)
	for lo := 0; lo < len(e.keys); lo += together {
		keys := e.keys[lo:min(lo+together, len(e.keys))]
		values := buf[:len(keys)*4*e.Schema().Width]
		if err := e.Gather(values, tensor.Float32, keys); err != nil {
			return err
		}
		if err := fn(keys, values); err != nil {
			return err
		}
	}
	return nil
}

func (e exported) writeKeys(w io.Writer) error {
	var b [8]byte
	for _, k := range e.keys {
		binary.LittleEndian.PutUint64(b[:], uint64(k))
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
	return nil
}

func (e exported) writeValues(w io.Writer) error {
	return e.each(func(_ []int64, values []byte) error { _, err := w.Write(values); return err })
}

// exporterOf returns what writes a file of a name.
func exporterOf(name string) (func(name string, e exported) error, error) {
	switch {
	case strings.HasSuffix(name, ".safetensors"):
		return exportSafetensors, nil
	case strings.HasSuffix(name, ".npy"):
		return exportNPY, nil
	case strings.HasSuffix(name, ".csv"):
		return exportCSV, nil
	}
	return nil, fmt.Errorf("%s: the name of the file must end with .safetensors, .npy or .csv", name)
}

// newFile writes a file beside its name, and then gives it the name.
func newFile(name string, write func(w io.Writer) error) (err error) {
	part := name + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(part)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(part, name)
}

func exportSafetensors(name string, e exported) error {
	table, n, width := e.Schema().Name, len(e.keys), e.Schema().Width
	infos := []safetensors.Info{
		{Name: table + ".keys", DType: safetensors.I64, Shape: []int{n}},
		{Name: table + ".rows", DType: safetensors.F32, Shape: []int{n, width}},
	}
	return newFile(name, func(w io.Writer) error {
		return safetensors.WriteFrom(w, infos, map[string]string{"format": "pt"}, func(w io.Writer, info safetensors.Info) error {
			if info.DType == safetensors.I64 {
				return e.writeKeys(w)
			}
			return e.writeValues(w)
		})
	})
}

// npyHeader is that of version 1.0 of NumPy's format: 64 bytes, or a multiple.
func npyHeader(descr, shape string) []byte {
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	size := (10 + len(dict) + 1 + 63) / 64 * 64
	dict += strings.Repeat(" ", size-10-len(dict)-1) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(dict)), byte(len(dict)>>8))
	return append(b, dict...)
}

func exportNPY(name string, e exported) error {
	err := newFile(strings.TrimSuffix(name, ".npy")+".keys.npy", func(w io.Writer) error {
		if _, err := w.Write(npyHeader("<i8", fmt.Sprintf("(%d,)", len(e.keys)))); err != nil {
			return err
		}
		return e.writeKeys(w)
	})
	if err != nil {
		return err
	}
	return newFile(name, func(w io.Writer) error {
		if _, err := w.Write(npyHeader("<f4", fmt.Sprintf("(%d, %d)", len(e.keys), e.Schema().Width))); err != nil {
			return err
		}
		return e.writeValues(w)
	})
}

func exportCSV(name string, e exported) error {
	width := e.Schema().Width
	return newFile(name, func(w io.Writer) error {
		line := []byte("key")
		for c := range width {
			line = fmt.Appendf(line, ",v%d", c)
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
		return e.each(func(keys []int64, values []byte) error {
			for i, k := range keys {
				line = strconv.AppendInt(line[:0], k, 10)
				for c := range width {
					line = append(line, ',')
					x := math.Float32frombits(binary.LittleEndian.Uint32(values[4*(i*width+c):]))
					line = strconv.AppendFloat(line, float64(x), 'g', -1, 32)
				}
				if _, err := w.Write(append(line, '\n')); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
